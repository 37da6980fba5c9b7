from __future__ import annotations

import pytest
import torch

from architectures import mlp, mnist_cnn
from dpbench import architecture
from tests.architectures.learning import counted_flops, loss_before_and_after

FC1_FORWARD_FLOPS = 2 * 784 * 1024


@pytest.fixture
def perceptron() -> architecture.Architecture:
    return architecture.load("mlp")


def test_it_has_the_documented_number_of_parameters(
    perceptron: architecture.Architecture,
) -> None:
    parameters = sum(p.numel() for p in perceptron.build_model().parameters())
    assert parameters == mlp.PARAMETERS == 1_863_690


def test_it_turns_images_into_log_probabilities(perceptron: architecture.Architecture) -> None:
    inputs, _ = perceptron.synthetic_batch(3, torch.Generator().manual_seed(0))
    outputs = perceptron.build_model()(inputs)
    assert outputs.shape == (3, 10)
    torch.testing.assert_close(outputs.exp().sum(dim=1), torch.ones(3))


def test_its_loss_is_the_mean_negative_log_likelihood(
    perceptron: architecture.Architecture,
) -> None:
    outputs = torch.log(torch.tensor([[0.5, 0.5], [0.25, 0.75]]))
    loss = perceptron.loss(outputs, torch.tensor([0, 0]))
    assert loss.shape == ()
    torch.testing.assert_close(loss, torch.log(torch.tensor(8.0)) / 2)


def test_its_forward_flops_are_those_that_torch_counts(
    perceptron: architecture.Architecture,
) -> None:
    assert mlp.FORWARD_FLOPS == 3_723_264
    assert counted_flops(perceptron, backward=False) == mlp.FORWARD_FLOPS


def test_its_flops_per_item_exceed_torchs_count_by_the_input_gradient_of_the_first_layer(
    perceptron: architecture.Architecture,
) -> None:
    counted = counted_flops(perceptron, backward=True)
    assert perceptron.flops_per_item - counted == FC1_FORWARD_FLOPS


def test_it_does_a_tenth_of_the_work_of_the_cnn_for_every_gradient_exchanged() -> None:
    perceptron = mlp.Architecture.flops_per_item / mlp.PARAMETERS
    cnn = mnist_cnn.Architecture.flops_per_item / mnist_cnn.PARAMETERS
    assert perceptron == pytest.approx(6, rel=0.01)
    assert cnn == pytest.approx(60, rel=0.01)


def test_it_learns_the_synthetic_classes(perceptron: architecture.Architecture) -> None:
    before, after = loss_before_and_after(perceptron, steps=12)
    assert after < 0.7 * before


def test_its_items_are_images_and_its_default_dataset_is_the_digits(
    perceptron: architecture.Architecture,
) -> None:
    names = (perceptron.name, perceptron.item, perceptron.default_dataset)
    assert names == ("mlp", "images", "digits")

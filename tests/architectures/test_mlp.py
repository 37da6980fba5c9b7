from __future__ import annotations

import pytest
import torch

from dpbench import architecture
from dpbench.architectures import mlp, mnist_cnn
from tests.architectures import on_meta
from tests.architectures.learning import counted_flops, loss_before_and_after

FC1_FORWARD_FLOPS = 2 * 784 * 1024


@pytest.fixture
def perceptron() -> architecture.Architecture:
    return architecture.load("mlp")


def test_it_has_the_documented_number_of_parameters(
    perceptron: architecture.Architecture,
) -> None:
    """803,840 + 1,049,600 in the hidden layers, 10,250 in the output layer."""
    assert on_meta.parameter_count(perceptron) == 1_863_690


def test_its_hidden_layers_are_as_many_and_as_wide_as_asked_for() -> None:
    model = mlp.Architecture(width=16, layers=3).build_model()
    names = [name for name, _ in model.named_children()]
    assert names == [
        *("flatten", "fc1", "relu1", "fc2", "relu2", "fc3", "relu3", "fc4", "log_softmax")
    ]
    shapes = [tuple(parameter.shape) for parameter in model.parameters() if parameter.dim() == 2]
    assert shapes == [(16, 784), (16, 16), (16, 16), (10, 16)]


@pytest.mark.parametrize("option", ["width", "layers"])
def test_an_option_that_it_cannot_use_is_named(option: str) -> None:
    with pytest.raises(ValueError, match=f"^{option}: got 0, expected at least 1$"):
        mlp.Architecture(**{option: 0})


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
    assert counted_flops(perceptron, backward=False) == 3_723_264
    assert perceptron.flops_per_item == 3 * 3_723_264


def test_its_flops_per_item_exceed_torchs_count_by_the_input_gradient_of_the_first_layer(
    perceptron: architecture.Architecture,
) -> None:
    counted = counted_flops(perceptron, backward=True)
    assert perceptron.flops_per_item - counted == FC1_FORWARD_FLOPS


def test_it_does_a_tenth_of_the_work_of_the_cnn_for_every_gradient_exchanged() -> None:
    both = mlp.Architecture(), mnist_cnn.Architecture()
    perceptron, cnn = (made.flops_per_item / on_meta.parameter_count(made) for made in both)
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

from __future__ import annotations

import pytest
import torch

from dpbench import architecture
from dpbench.architectures import mnist_cnn
from tests.architectures import on_meta
from tests.architectures.learning import counted_flops, loss_before_and_after

CONV1_FORWARD_FLOPS = 2 * 9 * 32 * 26 * 26


@pytest.fixture
def cnn() -> architecture.Architecture:
    return architecture.load("mnist_cnn")


def test_it_has_the_documented_number_of_parameters(cnn: architecture.Architecture) -> None:
    """320 + 18,496 in the convolutions, 1,179,776 + 1,290 in the fully connected layers."""
    assert on_meta.parameter_count(cnn) == 1_199_882


def test_its_width_is_that_of_the_first_convolution_and_widens_all_layers_but_the_last() -> None:
    narrow = mnist_cnn.Architecture(width=4)
    outputs = [len(p) for name, p in narrow.build_model().named_parameters() if "bias" in name]
    assert outputs == [4, 8, 16, 10]
    assert counted_flops(narrow, backward=False) == narrow.flops_per_item / 3


def test_a_width_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^width: got 0, expected at least 1$"):
        mnist_cnn.Architecture(width=0)


def test_it_turns_images_into_log_probabilities(cnn: architecture.Architecture) -> None:
    inputs, _ = cnn.synthetic_batch(3, torch.Generator().manual_seed(0))
    outputs = cnn.build_model()(inputs)
    assert outputs.shape == (3, 10)
    torch.testing.assert_close(outputs.exp().sum(dim=1), torch.ones(3))


def test_its_loss_is_the_mean_negative_log_likelihood(cnn: architecture.Architecture) -> None:
    outputs = torch.log(torch.tensor([[0.5, 0.5], [0.25, 0.75]]))
    loss = cnn.loss(outputs, torch.tensor([0, 0]))
    assert loss.shape == ()
    torch.testing.assert_close(loss, torch.log(torch.tensor(8.0)) / 2)


def test_equal_random_states_build_equal_models(cnn: architecture.Architecture) -> None:
    torch.manual_seed(7)
    first = cnn.build_model().state_dict()
    torch.manual_seed(7)
    second = cnn.build_model().state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_its_forward_flops_are_those_that_torch_counts(cnn: architecture.Architecture) -> None:
    assert counted_flops(cnn, backward=False) == 23_984_896
    assert cnn.flops_per_item == 3 * 23_984_896


def test_its_flops_per_item_exceed_torchs_count_by_the_input_gradient_of_the_first_layer(
    cnn: architecture.Architecture,
) -> None:
    counted = counted_flops(cnn, backward=True)
    assert cnn.flops_per_item - counted == CONV1_FORWARD_FLOPS


def test_it_learns_the_synthetic_classes(cnn: architecture.Architecture) -> None:
    before, after = loss_before_and_after(cnn, steps=12)
    assert after < 0.7 * before


def test_its_items_are_images_and_its_default_dataset_is_the_digits(
    cnn: architecture.Architecture,
) -> None:
    assert (cnn.name, cnn.item, cnn.default_dataset) == ("mnist_cnn", "images", "digits")

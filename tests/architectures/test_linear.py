from __future__ import annotations

import pytest
import torch
from dpbench.architectures.linear import Architecture

from dpbench.architectures import linear
from tests.architectures.learning import counted_flops, loss_before_and_after


def test_the_known_matrix_counts_from_minus_two_to_two() -> None:
    expected = torch.tensor([[-2.0, -1, 0, 1], [2, -2, -1, 0]])
    assert torch.equal(linear.true_weight(4, 2), expected)


@pytest.mark.parametrize(("bias", "parameters"), [(True, 10), (False, 8)])
def test_it_has_a_weight_for_each_pair_and_a_bias_where_asked_for(
    bias: bool, parameters: int
) -> None:
    model = Architecture(bias=bias).build_model()
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters
    assert not any(parameter.any() for parameter in model.parameters())


@pytest.mark.parametrize("bias", [True, False])
def test_its_targets_are_the_sums_of_the_known_matrix(bias: bool) -> None:
    inputs, targets = Architecture(bias=bias).synthetic_batch(64, torch.Generator().manual_seed(0))
    assert set(inputs.flatten().tolist()) == {-2.0, -1.0, 0.0, 1.0, 2.0}
    rows = zip(inputs.tolist(), targets.tolist(), strict=True)
    for (a, b, c, d), (first, second) in rows:
        assert first == -2 * a - b + d + bias
        assert second == 2 * a - 2 * b - c + bias


def test_its_loss_is_the_mean_squared_error() -> None:
    outputs, targets = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[1.0, 0], [0, 0]])
    assert Architecture().loss(outputs, targets).item() == (0 + 4 + 9 + 16) / 4


def test_the_first_step_is_exact_in_float32() -> None:
    """In whatever order it is added up: here as two halves of the batch, and in float64."""
    made = Architecture(inputs=16, outputs=4)
    inputs, targets = made.synthetic_batch(32, torch.Generator().manual_seed(0))

    def gradient(rows: slice, dtype: torch.dtype) -> torch.Tensor:
        model = made.build_model().to(dtype)
        loss = made.loss(model(inputs[rows].to(dtype)), targets[rows].to(dtype))
        (weight, _) = torch.autograd.grad(loss, list(model.parameters()))
        return weight

    whole = gradient(slice(None), torch.float32)
    halves = [gradient(slice(first, first + 16), torch.float32) for first in (0, 16)]
    assert torch.equal(whole, (halves[0] + halves[1]) / 2)
    assert torch.equal(whole.double(), gradient(slice(None), torch.float64))
    assert torch.equal(whole, -2 * targets.T @ inputs / (32 * 4))


def test_its_flops_are_those_that_torch_counts_and_the_input_gradient() -> None:
    made = Architecture(inputs=6, outputs=3)
    forward = counted_flops(made, backward=False)
    assert forward == 2 * 6 * 3
    assert made.flops_per_item - counted_flops(made, backward=True) == forward


def test_it_learns_the_known_matrix() -> None:
    before, after = loss_before_and_after(Architecture(), steps=20)
    assert after < 0.2 * before


@pytest.mark.parametrize("option", ["inputs", "outputs"])
def test_an_option_that_it_cannot_use_is_named(option: str) -> None:
    with pytest.raises(ValueError, match=f"^{option}: got 0, expected at least 1$"):
        Architecture(**{option: 0})


def test_its_items_are_rows_and_its_default_dataset_is_synthetic() -> None:
    made = Architecture()
    assert (made.name, made.item, made.default_dataset) == ("linear", "rows", "synthetic")

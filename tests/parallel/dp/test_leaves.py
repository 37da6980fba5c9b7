"""Gradients that arrive in a replica's leaves get to the right tensor, or nowhere else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.parallel.dp.modules import F64, assert_same, batch, gradients, parallel, perceptron

X = batch(7)


@contextmanager
def kept_activations(layer: nn.Module) -> Iterator[list[Tensor]]:
    kept: list[Tensor] = []
    hook = layer.register_forward_hook(lambda module, args, output: kept.append(output))
    yield kept
    hook.remove()


def test_a_backward_that_fails_leaves_nothing_for_the_next() -> None:
    module = perceptron()
    wrapper = parallel(module, 2)

    def refuse(layer: nn.Module, gradient: Any) -> None:
        raise ValueError("on purpose")

    hook = module[0].register_full_backward_pre_hook(refuse)
    with pytest.raises(ValueError, match="on purpose"):
        wrapper(X).sum().backward()
    hook.remove()
    module(X).sum().backward()
    expected = gradients(module)
    module.zero_grad()
    wrapper(X).sum().backward()
    assert_same(gradients(module), expected)


def test_a_loss_on_kept_activations_reaches_the_parameters_and_not_the_next_step() -> None:
    module = perceptron()

    def step(wrapped: nn.Module) -> list[list[Tensor | None]]:
        module.zero_grad()
        with kept_activations(module[0]) as kept:
            wrapped(X)
            torch.stack([activation.pow(2).sum() for activation in kept]).sum().backward()
        first = gradients(module)
        module.zero_grad()
        wrapped(X).pow(2).sum().backward()
        return [first, gradients(module)]

    for got, expected in zip(step(parallel(module, 3)), step(module), strict=True):
        assert_same(got, expected)


def test_a_loss_on_kept_activations_reaches_hooks_and_inputs_too() -> None:
    module = perceptron()
    module[0].weight.register_hook(lambda gradient: 3 * gradient)

    def step(wrapped: nn.Module) -> list[Tensor | None]:
        module.zero_grad()
        x = X.clone().requires_grad_()
        with kept_activations(module[0]) as kept:
            loss = wrapped(2 * x).pow(2).sum()
        total = loss + torch.stack([activation.pow(2).sum() for activation in kept]).sum()
        total.backward(retain_graph=True)
        return [*gradients(module), x.grad]

    assert_same(step(parallel(module, 2)), step(module))


class Scaled(nn.Module):
    """Multiplies with a tensor that has a history, and is neither parameter nor argument."""

    scale: Tensor

    def __init__(self, place: Callable[[nn.Module, Tensor], None], scale: Tensor) -> None:
        super().__init__()
        self.inner = perceptron()
        place(self, scale)

    def forward(self, x: Tensor) -> Tensor:
        held = self.held[0]["scale"] if hasattr(self, "held") else self.scale
        return self.inner(x) * held


def as_attribute(module: nn.Module, scale: Tensor) -> None:
    module.scale = scale


def in_a_list(module: nn.Module, scale: Tensor) -> None:
    module.held = [{"scale": scale}]  # type: ignore[assignment]


def as_buffer(module: nn.Module, scale: Tensor) -> None:
    module.register_buffer("scale", scale)


@pytest.mark.parametrize("place", [as_attribute, in_a_list, as_buffer])
@pytest.mark.parametrize("history", [True, False])
def test_tensors_that_a_module_holds_get_their_gradients(
    place: Callable[[nn.Module, Tensor], None], history: bool
) -> None:
    origin = torch.ones(4, dtype=F64, requires_grad=True)

    def step(replicas: int) -> list[Tensor | None]:
        origin.grad = None
        module = Scaled(place, 2 * origin if history else origin)
        wrapped = parallel(module, replicas) if replicas else module
        with torch.no_grad():
            wrapped(X)
        wrapped(X).pow(2).sum().backward()
        return [*gradients(module.inner), origin.grad]

    assert_same(step(3), step(0))

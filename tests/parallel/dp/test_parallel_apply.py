from __future__ import annotations

import gc
import weakref
from collections import OrderedDict
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from tests.parallel.ddp.one_process import assert_same, gradients, perceptron
from tests.parallel.dp.modules import F64, batch, check_like_alone, parallel, square_mean


def test_second_derivatives_are_refused() -> None:
    x = batch(5).requires_grad_()
    loss = parallel(perceptron(), 2)(x).sum()
    with pytest.raises(RuntimeError, match=r"got create_graph=True.*call its module instead"):
        torch.autograd.grad(loss, [x], create_graph=True)


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner = nn.Linear(6, 6, dtype=F64), perceptron()

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.inner, self.first(x), use_reentrant=False)


class Sharing(nn.Module):
    """Reaches its layer by ways on which a replica finds the original."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6, dtype=F64)
        self.layer.register_forward_hook(self.scaled)
        self.ordered = OrderedDict(layer=self.layer)
        self.found = {self.layer}

    def scaled(self, module: nn.Module, args: Any, output: Tensor) -> Tensor:
        return output * self.layer.bias.sum()

    def forward(self, x: Tensor) -> Tensor:
        for layer in (self.layer, self.ordered["layer"], *self.found):
            x = layer(x).tanh()
        return x


@pytest.mark.parametrize("make", [Checkpointed, Sharing])
def test_checkpoints_inside_and_parts_shared_with_the_original_work(make: type[nn.Module]) -> None:
    check_like_alone(make(), 2)


def test_activation_checkpointing_around_the_wrapper_is_refused() -> None:
    wrapper, x = parallel(perceptron(), 2), batch(4).requires_grad_()
    with pytest.raises(RuntimeError, match="use them on parts of its module instead"):
        checkpoint(wrapper, x, use_reentrant=False).sum().backward()


def test_sparse_gradients_stay_sparse() -> None:
    module = nn.EmbeddingBag(10, 3, sparse=True, mode="sum", dtype=F64)
    words = torch.arange(12).view(6, 2) % 10
    check_like_alone(module, 2, lambda one: one(words).pow(2).sum())
    assert module.weight.grad is not None
    assert module.weight.grad.is_sparse


def test_a_step_leaves_nothing_for_the_garbage_collector() -> None:
    module = perceptron()
    wrapper = parallel(module, 2)

    def step() -> None:
        square_mean(wrapper).backward()
        torch.autograd.grad(square_mean(wrapper), [module[0].weight])
        module.zero_grad()

    step()
    gc.collect()
    gc.disable()
    try:
        step()
        assert gc.collect() == 0
    finally:
        gc.enable()


class Saved:
    """A tensor that a backward will need."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


class Deep(nn.Module):
    """Ten layers, and at the first one's backward the number of saved tensors that are alive."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6, dtype=F64) for _ in range(10))
        self.alive: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        saved: weakref.WeakSet[Saved] = weakref.WeakSet()

        def pack(tensor: Tensor) -> Saved:
            saved.add(kept := Saved(tensor))
            return kept

        with saved_tensors_hooks(pack, lambda kept: kept.tensor):
            for layer in self.layers:
                x = layer(x).tanh()
                if layer is self.layers[0]:
                    x.register_hook(lambda _: self.alive.append(len(saved)))
        return x


def test_activations_are_freed_as_the_backward_goes() -> None:
    module = Deep()
    module(batch(4)).sum().backward()
    alone = module.alive.pop()
    wrapper = parallel(module, 2)
    wrapper(batch(4)).sum().backward()
    assert module.alive == [alone, alone]
    loss = wrapper(batch(4)).sum()
    loss.backward(retain_graph=True)
    assert module.alive[-1] > 2 * alone


def test_a_graph_has_a_second_backward_if_it_is_retained() -> None:
    module = perceptron()
    loss = square_mean(parallel(module, 2))
    loss.backward(retain_graph=True)
    once = gradients(module)
    loss.backward()
    assert_same(gradients(module), {name: 2 * grad for name, grad in once.items()})
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()

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

from tests.parallel.dp.modules import F64, assert_same, batch, gradients, parallel, perceptron


def test_second_derivatives_are_refused() -> None:
    x = batch(5).requires_grad_()
    loss = parallel(perceptron(), 2)(x).sum()
    with pytest.raises(RuntimeError, match=r"got create_graph=True.*call its module instead"):
        torch.autograd.grad(loss, [x], create_graph=True)


def test_activation_checkpointing_works_inside_replicas() -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(6, 6, dtype=F64)
            self.inner = perceptron()

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.inner, self.first(x), use_reentrant=False)

    module, x = Checkpointed(), batch(6)
    module.inner(module.first(x)).pow(2).sum().backward()
    expected = gradients(module)
    module.zero_grad()
    parallel(module, 2)(x).pow(2).sum().backward()
    assert_same(gradients(module), expected)


def test_activation_checkpointing_around_the_wrapper_is_refused() -> None:
    wrapper, x = parallel(perceptron(), 2), batch(4).requires_grad_()
    with pytest.raises(RuntimeError, match="use them on parts of its module instead"):
        checkpoint(wrapper, x, use_reentrant=False).sum().backward()


def test_sparse_gradients_stay_sparse() -> None:
    torch.manual_seed(0)
    module = nn.EmbeddingBag(10, 3, sparse=True, mode="sum", dtype=F64)
    words = torch.arange(12).view(6, 2) % 10
    module(words).pow(2).sum().backward()
    expected = module.weight.grad
    module.zero_grad()
    parallel(module, 2)(words).pow(2).sum().backward()
    got = module.weight.grad
    assert got is not None
    assert expected is not None
    assert got.is_sparse
    torch.testing.assert_close(got.to_dense(), expected.to_dense())


def test_a_step_leaves_nothing_for_the_garbage_collector() -> None:
    module = perceptron()
    wrapper, x = parallel(module, 2), batch(4)

    def step() -> None:
        wrapper(x).pow(2).mean().backward()
        torch.autograd.grad(wrapper(x).sum(), [module[0].weight])
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

        def count(gradient: Tensor) -> None:
            self.alive.append(len(saved))

        with saved_tensors_hooks(pack, lambda kept: kept.tensor):
            for layer in self.layers:
                x = layer(x).tanh()
                if layer is self.layers[0]:
                    x.register_hook(count)
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
    loss = parallel(module, 2)(batch(5)).pow(2).mean()
    loss.backward(retain_graph=True)
    expected: list[Any] = [2 * gradient for gradient in gradients(module) if gradient is not None]
    loss.backward()
    assert_same(gradients(module), expected)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()


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


def test_a_parameter_gets_its_gradients_also_from_where_replicas_share_the_original() -> None:
    torch.manual_seed(0)
    module, x = Sharing(), batch(6)
    module(x).pow(2).sum().backward()
    expected = gradients(module)
    module.zero_grad()
    parallel(module, 2)(x).pow(2).sum().backward()
    assert_same(gradients(module), expected)

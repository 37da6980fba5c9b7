from __future__ import annotations

import gc
import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from dpbench.parallel import DataParallel
from tests.parallel.dp.modules import F64, assert_same, batch, gradients, parallel, perceptron


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_a_gradient_penalty_is_that_of_the_module_alone(replicas: int) -> None:
    module = perceptron()

    def penalty(wrapped: nn.Module) -> list[Tensor | None]:
        module.zero_grad()
        x = batch(5).requires_grad_()
        y = wrapped(x)
        [slope] = torch.autograd.grad(y.pow(3).sum(), [x], create_graph=True)
        loss = y.mean() + (slope.norm(dim=1) - 1).pow(2).mean()
        loss.backward()
        return [*gradients(module), x.grad]

    assert_same(penalty(parallel(module, replicas)), penalty(module))


def test_gradients_of_parameters_have_derivatives_of_any_order() -> None:
    module = perceptron()

    def third(wrapped: nn.Module) -> list[Tensor]:
        x = batch(4).requires_grad_()
        weight = module[0].weight
        value = wrapped(x).pow(2).sum()
        for _ in range(2):
            [slope] = torch.autograd.grad(value, [weight], create_graph=True)
            value = slope.pow(2).sum()
        return list(torch.autograd.grad(value, [x, *module.parameters()], allow_unused=True))

    assert_same(third(parallel(module, 3)), third(module))


def test_saved_tensors_hooks_reach_the_replicas() -> None:
    module, x = perceptron(), batch(4)
    wrapper = parallel(module, 2)
    packed: list[Any] = []

    def pack(tensor: Tensor) -> Tensor:
        packed.append(threading.current_thread().name)
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = wrapper(x).pow(2).sum()
    inside = [name for name in packed if name.startswith("dpbench-replica")]
    assert len(set(inside)) == 2
    loss.backward()


@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpointing_works_inside_replicas(reentrant: bool) -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(6, 6, dtype=F64)
            self.inner = perceptron()

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.inner, self.first(x), use_reentrant=reentrant)

    module, x = Checkpointed(), batch(6)
    module.inner(module.first(x)).pow(2).sum().backward()
    expected = gradients(module)
    module.zero_grad()
    parallel(module, 2)(x).pow(2).sum().backward()
    assert_same(gradients(module), expected)


class InOneMemory(nn.Module):
    """Autograd gives both parameters their gradient in the same memory."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.square = nn.Parameter(torch.randn(300, 300))
        self.flat = nn.Parameter(torch.randn(90000))

    def forward(self, x: Tensor) -> Tensor:
        weight = self.square + self.flat.view(300, 300)
        return x @ weight.tanh()


def test_large_gradients_in_one_memory_are_each_summed_once() -> None:
    x = torch.randn(4, 300, generator=torch.Generator().manual_seed(1))
    alone, replicated = InOneMemory(), InOneMemory()
    alone(x).pow(2).mean().backward()
    dp = DataParallel(replicated, ["cpu", "cpu"])
    for _ in range(2):
        dp.zero_grad()
        dp(x).pow(2).mean().backward()
        for name, parameter in replicated.named_parameters():
            expected = alone.get_parameter(name).grad
            torch.testing.assert_close(parameter.grad, expected, msg=name)


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


def test_a_parameter_written_between_forward_and_backward_is_noticed() -> None:
    module = perceptron()
    loss = parallel(module, 2)(batch(4)).sum()
    with torch.no_grad():
        module[2].weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


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

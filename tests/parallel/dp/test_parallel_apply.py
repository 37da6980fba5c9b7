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


def test_second_derivatives_are_refused() -> None:
    x = batch(5).requires_grad_()
    loss = parallel(perceptron(), 2)(x).sum()
    with pytest.raises(RuntimeError, match=r"got create_graph=True.*call its module instead"):
        torch.autograd.grad(loss, [x], create_graph=True)


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


@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpointing_around_the_wrapper_is_refused(reentrant: bool) -> None:
    wrapper, x = parallel(perceptron(), 2), batch(4).requires_grad_()
    with pytest.raises(RuntimeError, match="checkpoint parts of its module instead"):
        checkpoint(wrapper, x, use_reentrant=reentrant).sum().backward()


def test_a_replica_may_call_its_own_wrapper() -> None:
    class Twice(nn.Module):
        wrapper: list[DataParallel]

        def __init__(self) -> None:
            super().__init__()
            self.inner = perceptron()
            self.deeper = threading.local()

        def forward(self, x: Tensor) -> Tensor:
            if getattr(self.deeper, "entered", False):
                return self.inner(x)
            self.deeper.entered = True
            try:
                return self.wrapper[0](x)
            finally:
                self.deeper.entered = False

    module, x = Twice(), batch(4)
    module.inner(x).pow(2).sum().backward()
    expected = gradients(module)
    module.zero_grad()
    module.wrapper = [parallel(module, 2)]
    done = threading.Event()
    threading.Thread(
        target=lambda: (module.wrapper[0](x).pow(2).sum().backward(), done.set()), daemon=True
    ).start()
    assert done.wait(60)
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

"""Gradients averaged by hand are those of one process, whoever has them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dpbench.parallel.synchronization import sync_gradients
from tests.parallel.ddp.one_process import batches, perceptron
from tests.parallel.worlds import World

world = World(backend="gloo")


@world.body
def gradients_are_those_of_one_process(rank: int) -> None:
    module, alone = perceptron(), perceptron()
    module(batches(0)[rank]).square().mean().backward()
    sync_gradients(module)
    alone(batches(0).flatten(0, 1)).square().mean().backward()
    for ours, theirs in zip(module.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-12, atol=1e-14)


@world.body
def no_gradient_is_zero_unless_nobody_has_one(rank: int) -> None:
    first, second, third = (nn.Parameter(torch.ones(2)) for _ in range(3))
    (first if rank == 0 else second).sum().backward()
    sync_gradients([first, second, third])
    assert first.grad is not None
    assert second.grad is not None
    assert first.grad.tolist() == second.grad.tolist() == [0.5, 0.5]
    assert third.grad is None


@world.body
def every_dtype_is_averaged(rank: int) -> None:
    dtypes = [torch.float32, torch.bfloat16, torch.float64, torch.complex64, torch.float32]
    weights = [nn.Parameter(torch.ones(2, dtype=dtype)) for dtype in dtypes]
    for weight in weights:
        weight.grad = torch.full_like(weight, 2.0 * rank)
    sync_gradients(weights)
    for weight, dtype in zip(weights, dtypes, strict=True):
        assert weight.grad is not None
        assert (weight.grad.dtype, weight.grad.tolist()) == (dtype, [1.0, 1.0])


@world.body
def a_sparse_gradient_on_one_rank_is_an_error_on_all(rank: int) -> None:
    table = nn.Embedding(3, 2, sparse=True)
    if rank == 0:
        table(torch.tensor([1])).sum().backward()
    with pytest.raises(RuntimeError, match="parameter 'weight' is sparse on a rank"):
        sync_gradients(table)


@world.body
def a_wrapped_module_is_refused(rank: int) -> None:
    wrapped = nn.parallel.DistributedDataParallel(perceptron())
    for module in (wrapped, nn.Sequential(wrapped)):
        with pytest.raises(RuntimeError, match="is or contains a DistributedDataParallel"):
            sync_gradients(module)


test_on_ranks = world.test()

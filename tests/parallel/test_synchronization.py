"""Without a wrapper: gradients averaged by hand, and the values of one rank for all."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dpbench.parallel import DistributedDataParallel, check_sync
from dpbench.parallel.synchronization import broadcast_checkpoint, sync_gradients
from tests.parallel.ddp.one_process import (
    assert_same,
    error_everywhere,
    gradients,
    mean_gradients,
    perceptron,
    step,
)
from tests.parallel.ranks import model
from tests.parallel.worlds import World

world = World(backend="gloo")


@world.body
def averaged_gradients_are_those_of_one_process(rank: int) -> None:
    module = perceptron()
    step(module, 0, rank)
    sync_gradients(module)
    assert_same(gradients(module), mean_gradients(perceptron))


@world.body
def no_gradient_is_zero_unless_nobody_has_one(rank: int) -> None:
    dtypes = [torch.float32, torch.bfloat16, torch.float64, torch.complex64, torch.float32]
    weights = [nn.Parameter(torch.ones(2, dtype=dtype)) for dtype in dtypes]
    for number, weight in enumerate(weights[:-1]):
        if number % 2 == rank:
            weight.grad = torch.full_like(weight, 2.0)
    sync_gradients(weights)
    for weight, dtype in zip(weights[:-1], dtypes, strict=False):
        assert weight.grad is not None
        assert (weight.grad.dtype, weight.grad.tolist()) == (dtype, [1.0, 1.0])
    assert weights[-1].grad is None
    table = nn.Embedding(3, 1, sparse=True)
    if rank == 0:
        table(torch.tensor([1])).sum().backward()
    words = error_everywhere(lambda: sync_gradients(table))
    assert "parameter 'weight' is sparse on a rank" in words


@world.body
def a_wrapped_module_is_refused(rank: int) -> None:
    wrapped = nn.parallel.DistributedDataParallel(perceptron())
    for module in (wrapped, nn.Sequential(wrapped)):
        with pytest.raises(RuntimeError, match="is or contains a DistributedDataParallel"):
            sync_gradients(module)


def holding(**tensors: torch.Tensor) -> nn.Module:
    module = nn.Module()
    for name, tensor in tensors.items():
        module.register_buffer(name, tensor)
    return module


@world.body
def all_ranks_hold_what_the_source_held(rank: int) -> None:
    for source in range(2):
        module = model(seed=rank)
        expected = [t.clone() for t in model(seed=source).state_dict().values()]
        assert broadcast_checkpoint(module, src=source) == sum(t.nbytes for t in expected)
        assert all(map(torch.equal, module.state_dict().values(), expected))
    for wrap in (nn.DataParallel, DistributedDataParallel):  # one rank has a bare module
        module = model(seed=rank)
        wrapped = wrap(module) if rank or wrap is DistributedDataParallel else module
        with torch.no_grad():
            module[0].weight += rank
        broadcast_checkpoint(wrapped, src=1)
        check_sync(module)


@world.body
def tensors_of_any_kind_are_sent(rank: int) -> None:
    fill = rank + 1.0
    module = holding(
        brief=torch.full((5,), fill, dtype=torch.bfloat16),
        long_=torch.tensor([torch.nan, fill], dtype=torch.float64),
        count=torch.tensor(rank),
        flags=torch.tensor([rank == 0, True]),
        wave=torch.full((2,), fill * 1j),
        empty=torch.empty(0, 3),
        transposed=torch.full((3, 4), fill).t(),
        strided=torch.full((6,), fill)[::2],
    )
    broadcast_checkpoint(module)
    check_sync(module)
    assert module.count == 0
    assert not module.transposed.is_contiguous()


@world.body
def what_differs_is_named_and_nothing_is_changed(rank: int) -> None:
    module = model(seed=rank)
    if rank:
        module[2] = nn.Linear(4, 3)
    before = module[0].weight.clone()
    words = error_everywhere(lambda: broadcast_checkpoint(module))
    assert "all ranks, but rank 0 has parameter '2.weight': (2, 4) torch.float32" in words
    assert "rank 1 has parameter '2.weight': (3, 4) torch.float32" in words
    assert torch.equal(module[0].weight, before)
    holds = holding(a=torch.ones(1)) if rank else holding()
    words = error_everywhere(lambda: broadcast_checkpoint(holds))
    assert "rank 0 has nothing more, while rank 1 has buffer 'a': (1,) torch.float32" in words
    words = error_everywhere(lambda: broadcast_checkpoint(model(), src=rank))
    assert "rank 0 has option 'src': 0, while rank 1 has option 'src': 1" in words
    for source in (2, -1, True):
        with pytest.raises(ValueError, match=f"got src={source}, expected a rank .*: 0 to 1"):
            broadcast_checkpoint(model(), src=source)


test_on_ranks = world.test()

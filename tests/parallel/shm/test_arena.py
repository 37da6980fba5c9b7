"""Tensors that the group reduces in place."""

from __future__ import annotations

import gc
import os
import random
import resource
from itertools import product
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

import dpbench
from dpbench.parallel.shm import arena_of
from dpbench.parallel.shm.arena import Arena
from tests.parallel.ranks import on_ranks
from tests.parallel.shm.cases import same_bits

SIZES = (0, 3, 16_385, 300_001)


def _arena(group: dist.ProcessGroup | None = None) -> Arena:
    arena = arena_of(group or dist.group.WORLD)
    assert arena is not None
    return arena


@on_ranks(2, 3, backend="shm")
def test_all_reduce_is_the_same_wherever_the_tensors_lie(rank: int) -> None:
    arena, size = _arena(), dist.get_world_size()
    spaces = [arena.allocate(4 * max(SIZES) + 400) for _ in range(2)]
    assert all((space == 0).all() for space in spaces)
    operators = (dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.MAX)
    for numel, op, asynchronous in product(SIZES, operators, (True, False)):
        values = [torch.arange(numel) * 0.1 + peer for peer in range(size)]
        plain = values[rank].clone()
        dist.all_reduce(plain, op=op)
        # In the arena at one offset, at different ones, in different allocations, in and out.
        places = [
            spaces[0][400:],
            spaces[0][4 * rank :],
            spaces[rank % 2],
            spaces[0] if rank else torch.empty(4 * numel, dtype=torch.uint8),
        ]
        for place in places:
            tensor = place[: 4 * numel].view(torch.float32)
            tensor.copy_(values[rank])
            work = dist.all_reduce(tensor, op=op, async_op=asynchronous)
            if work is not None:
                work.wait()
            assert same_bits(tensor, plain)


def _resident_bytes() -> int:
    """Of all groups' memory, what takes any."""
    total, counted = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split()[0]:
            counted = "memfd:dpbench-shm" in line
        elif counted and line.startswith("Rss:"):
            total += int(line.split()[1]) * 1024
    return total


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@on_ranks(2, backend="shm")
def test_memory_is_freed_with_its_tensors(rank: int) -> None:
    arena = _arena()
    dist.all_reduce(arena.allocate(100_000))
    addresses = set()
    for _ in range(4):
        before = _resident_bytes()
        space = arena.allocate(3_000_000)
        assert (space == 0).all()
        view = space[40:].view(torch.float32)
        dist.all_reduce(view.fill_(1))
        assert _resident_bytes() >= before + 3_000_000
        addresses.add(space.data_ptr())
        del view, space
        gc.collect()
        dist.barrier()
        assert _resident_bytes() <= before + 100_000
    assert len(addresses) == 1
    # One rank drops its part earlier than the other, which keeps its own and all that is in it.
    first, second = arena.allocate(100_000), arena.allocate(100_000)
    first.fill_(7)
    kept = first.data_ptr()
    if rank == 0:
        del first
        first = torch.full((100_000,), 7, dtype=torch.uint8)
    third = arena.allocate(100_000)
    assert third.data_ptr() != kept
    third.fill_(3)
    second += 1
    for tensor in (first, second):
        dist.all_reduce(tensor)
    assert (first == 14).all()
    assert (second == 2).all()
    assert (third == 3).all()


@on_ranks(2, backend="shm")
def test_fifteen_hundred_tensors_take_no_descriptors(rank: int) -> None:
    """Tensors with more memory than the first segment has, under a low limit of descriptors."""
    descriptors = _descriptors()
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors + 20, descriptors + 20))
    arena = _arena()
    spaces = [arena.allocate(50_000 + 8 * number).view(torch.int64) for number in range(1500)]
    assert _descriptors() == descriptors
    for number, space in enumerate(spaces):
        assert space.data_ptr() % 64 == 0
        space.fill_(number)
    for space in spaces[::100]:
        dist.all_reduce(space)
    for number, space in enumerate(spaces):
        assert (space == (number if number % 100 else 2 * number)).all()


class _Holder(nn.Module):
    """Parameters that are added up."""

    def __init__(self, *parameters: torch.Tensor) -> None:
        super().__init__()
        self.held = nn.ParameterList(parameters)

    def forward(self) -> torch.Tensor:
        return torch.stack([parameter.double().sum() for parameter in self.held]).sum()


@on_ranks(2, backend="shm")
def test_a_dtype_may_have_empty_parameters_only(rank: int) -> None:
    model = _Holder(torch.ones(3), torch.empty(0, dtype=torch.float64))
    wrapped = dpbench.DistributedDataParallel(model)
    (wrapped() * (rank + 1)).backward()
    first, second = (parameter.grad for parameter in model.parameters())
    assert first.tolist() == [1.5] * 3
    assert second.shape == (0,)


@on_ranks(2, backend="shm", timeout=100)
def test_fifteen_hundred_buckets_are_trained_with_1024_descriptors(rank: int) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
    model = _Holder(*(torch.ones(1) for _ in range(1500)))
    wrapped = dpbench.DistributedDataParallel(model, bucket_cap_mb=4 / 2**20)
    for _ in range(2):
        model.zero_grad()
        (wrapped() * (rank + 1)).backward()
    assert all(parameter.grad.item() == 1.5 for parameter in model.parameters())


@on_ranks(2, 3, backend="shm")
def test_blocks_never_overlap_whoever_drops_them_first(rank: int) -> None:
    """Ranks drop their tensors in different orders; no two that live may share memory."""
    arena, size = _arena(), dist.get_world_size()
    shared, own = random.Random(1), random.Random(rank)
    alive: list[tuple[int, torch.Tensor]] = []
    for number in range(400):
        space = arena.allocate(shared.choice((0, 1, 4096, 5000, 70_000, 2_000_000)))
        assert not space.any()
        space.fill_(number % 100)
        alive.append((number, space))
        while len(alive) > 20 or (alive and own.random() < 0.3):
            dropped, tensor = alive.pop(own.randrange(len(alive)))
            assert (tensor == dropped % 100).all()
    last = [arena.allocate(100_000) for _ in range(3)]
    for space in last:
        dist.all_reduce(space.fill_(1))
        assert (space == size).all()
    for number, space in alive:
        assert (space == number % 100).all()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@on_ranks(2, backend="shm")
def test_a_forked_child_frees_nothing_of_its_parent(rank: int) -> None:
    arena = _arena()
    spaces = [arena.allocate(100_000).fill_(5) for _ in range(3)]
    child = os.fork()
    if child == 0:
        spaces.clear()
        gc.collect()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert all((space == 5).all() for space in spaces)


@on_ranks(2, backend="shm")
def test_memory_outlives_its_group(rank: int) -> None:
    pair = dist.new_group(backend="shm")
    tensor = _arena(pair).allocate(5000)
    dist.destroy_process_group(pair)
    del pair
    gc.collect()
    tensor += 1
    assert int(tensor.sum()) == 5000


@on_ranks(2, 3, backend="shm")
def test_each_rank_sees_the_memory_of_all(rank: int) -> None:
    arena, size = _arena(), dist.get_world_size()
    assert arena.size == size
    space = arena.allocate(100_000)[40:80_040].view(torch.float32)
    everywhere = arena.everywhere(space)
    assert everywhere[rank].data_ptr() == space.data_ptr()
    space.fill_(rank)
    dist.barrier()
    for peer, theirs in enumerate(everywhere):
        assert theirs.shape == space.shape
        assert (theirs == peer).all()
    with pytest.raises(ValueError, match="got a tensor of other memory"):
        arena.everywhere(torch.ones(3))
    dist.barrier()


@on_ranks(2, backend="shm")
def test_sizes_that_cannot_be_are_errors_on_every_rank(rank: int) -> None:
    with pytest.raises(ValueError, match="got nbytes=-1, expected a number of bytes, 0 or more"):
        _arena().allocate(-1)
    with pytest.raises(dist.DistBackendError, match=r"allocate\(100 × .*allocate\(101 ×"):
        _arena().allocate(100 + rank)
    with pytest.raises(OSError, match="rank 0 could not allocate"):
        _arena().allocate(2**62)
    assert _arena().allocate(0).shape == (0,)
    assert _arena().allocate(0).view(torch.float32).shape == (0,)
    dist.all_reduce(tensor := _arena().allocate(70_000).fill_(1))
    assert (tensor == 2).all()
    assert arena_of(dist.new_group(backend="gloo")) is None

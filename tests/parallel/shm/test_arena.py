"""Tensors that the group reduces in place."""

from __future__ import annotations

import gc
from itertools import product
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from dpbench.parallel.shm import ShmProcessGroup, arena_of
from tests.parallel.ranks import run_ranks
from tests.parallel.shm.cases import same_bits

SIZES = (0, 3, 16_385, 300_001)


def _group() -> ShmProcessGroup:
    group = arena_of(dist.group.WORLD)
    assert group is not None
    return group


def _in_place_and_not(rank: int) -> None:
    group, size = _group(), dist.get_world_size()
    spaces = [group.allocate(4 * max(SIZES) + 400) for _ in range(2)]
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


@pytest.mark.parametrize("size", [2, 3])
def test_all_reduce_is_the_same_wherever_the_tensors_lie(tmp_path: Path, size: int) -> None:
    run_ranks(_in_place_and_not, tmp_path / "store", size, backend="shm")


def _mappings() -> int:
    return Path("/proc/self/maps").read_text().count("memfd")


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def _memory_comes_and_goes(rank: int) -> None:
    group = _group()
    mappings, descriptors = _mappings(), _descriptors()
    for _ in range(20):
        view = group.allocate(100_000)[40:].view(torch.float32)
        assert _mappings() > mappings
        dist.all_reduce(view)
        del view
    gc.collect()
    assert _mappings() == mappings
    assert _descriptors() == descriptors
    # One rank drops its part earlier than the other.
    first, second = group.allocate(100_000), group.allocate(100_000)
    if rank == 0:
        del first
        first = torch.zeros(100_000, dtype=torch.uint8)
    second += 1
    for tensor in (first, second):
        dist.all_reduce(tensor)
    assert (second == 2).all()


def test_memory_is_freed_with_its_tensors(tmp_path: Path) -> None:
    run_ranks(_memory_comes_and_goes, tmp_path / "store", 2, backend="shm")


def _outlives_the_group(rank: int) -> None:
    pair = dist.new_group(backend="shm")
    group = arena_of(pair)
    assert group is not None
    tensor = group.allocate(5000)
    dist.destroy_process_group(pair)
    del group, pair
    gc.collect()
    tensor += 1
    assert int(tensor.sum()) == 5000


def test_memory_outlives_its_group(tmp_path: Path) -> None:
    run_ranks(_outlives_the_group, tmp_path / "store", 2, backend="shm")


def _bad_sizes(rank: int) -> None:
    with pytest.raises(ValueError, match="got nbytes=0, expected a number of bytes above 0"):
        _group().allocate(0)
    with pytest.raises(dist.DistBackendError, match=r"allocate\(100 × .*allocate\(101 ×"):
        _group().allocate(100 + rank)
    with pytest.raises(OSError, match="rank 0 could not allocate"):
        _group().allocate(2**62)
    assert arena_of(dist.new_group(backend="gloo")) is None


def test_sizes_that_cannot_be_are_errors_on_every_rank(tmp_path: Path) -> None:
    run_ranks(_bad_sizes, tmp_path / "store", 2, backend="shm")

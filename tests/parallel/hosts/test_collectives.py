"""Every collective of ranks on several hosts against its definition."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from dpbench.parallel.hosts import HostsProcessGroup, all_reduce, collectives
from dpbench.parallel.shm import ShmProcessGroup, arena_of
from tests.parallel.ranks import on_ranks, run_ranks
from tests.parallel.shm.cases import (
    FLOATS,
    REDUCTIONS,
    Case,
    run_random_cases,
    same_bits,
)

PLACES = {
    "two and two": (0, 0, 1, 1),
    "in turn": (0, 1, 0, 1),
    "two and one": (0, 0, 1),
    "one each": (0, 1, 2),
    "three hosts": (0, 1, 1, 2),
}
SHORT_CHUNK_BYTES = 128 * 1024
"""So that there are several in a tensor that takes little time."""
SEVERAL_CHUNKS = 100_003
SIZES = (0, 1, 3, 1000, 16_385, SEVERAL_CHUNKS)
RANDOM_CASES = 150
IN_FLIGHT = 4
# Sums are taken host by host, so their last bits differ from those of sums by rank.
TOLERANCES = {
    torch.float64: 1e-12,
    torch.float32: 1e-5,
    torch.float16: 0.02,
    torch.bfloat16: 0.1,
}


def _check(case: Case, output: Tensor, result: Tensor) -> None:
    rounded = case.kind in REDUCTIONS and case.operator in ("sum", "product")
    if rounded and case.dtype in FLOATS:
        limit = TOLERANCES[case.dtype]
        torch.testing.assert_close(output, result, rtol=limit, atol=limit)
    else:
        assert same_bits(output, result), case


def _random_collectives(rank: int) -> None:
    """Some of them in flight together, on the world and on a group of all ranks but the last."""
    all_reduce.CHUNK_BYTES = collectives.CHUNK_BYTES = SHORT_CHUNK_BYTES
    size = dist.get_world_size()
    world = dist.group.WORLD
    assert isinstance(world, HostsProcessGroup)
    smaller = dist.new_group(list(range(size - 1)), backend="shm+gloo")
    groups = [(world, size), (smaller, size - 1)]
    run_random_cases(groups, RANDOM_CASES, _check, in_flight=IN_FLIGHT, sizes=SIZES)


@pytest.mark.parametrize("places", PLACES.values(), ids=PLACES)
def test_random_collectives_do_what_they_are_defined_to(
    tmp_path: Path, places: tuple[int, ...]
) -> None:
    run_ranks(
        _random_collectives, tmp_path / "store", len(places), backend="shm+gloo", hosts=places
    )


def _sums(rank: int) -> list[float]:
    all_reduce.CHUNK_BYTES = collectives.CHUNK_BYTES = SHORT_CHUNK_BYTES
    tensor = torch.randn(SEVERAL_CHUNKS, generator=torch.Generator().manual_seed(rank))
    dist.all_reduce(tensor)
    return tensor.tolist()


def test_all_ranks_get_the_same_bits_of_a_sum(tmp_path: Path) -> None:
    places = PLACES["three hosts"]
    first, *others = run_ranks(
        _sums, tmp_path / "store", len(places), backend="shm+gloo", hosts=places
    )
    assert all(other == first for other in others)


@on_ranks(4, backend="shm+gloo", hosts=(0, 0, 1, 1))
def test_tensors_in_the_memory_of_a_host_are_reduced_in_place(rank: int) -> None:
    all_reduce.CHUNK_BYTES = SHORT_CHUNK_BYTES
    arena = arena_of(dist.distributed_c10d._get_default_group())
    assert arena is not None
    shared = arena.allocate(4 * SEVERAL_CHUNKS).view(torch.float32)
    for step in range(3):
        dist.all_reduce(shared.fill_(rank + step))
        assert (shared == 6 + 4 * step).all()
    # Only some ranks of a host have their operand in the arena.
    tensor = shared if rank % 2 else torch.empty(SEVERAL_CHUNKS)
    dist.all_reduce(tensor.fill_(rank), op=dist.ReduceOp.AVG)
    assert (tensor == 1.5).all()


@on_ranks(3, backend="shm+gloo", hosts=(0, 0, 1))
def test_averages_divide_by_the_number_of_ranks_not_of_hosts(rank: int) -> None:
    size = dist.get_world_size()
    for dtype in (torch.float32, torch.bfloat16):
        tensor = torch.full((1000,), 4.0 * rank, dtype=dtype)
        dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
        assert same_bits(tensor, torch.full((1000,), 2.0 * (size - 1), dtype=dtype))
    output = torch.empty(3)
    dist.reduce_scatter(output, [torch.full((3,), 1.0 + rank)] * size, op=dist.ReduceOp.AVG)
    assert (output == (size + 1) / 2).all()
    with pytest.raises(ValueError, match=r"cannot reduce torch\.int64 with AVG"):
        dist.all_reduce(torch.ones(2, dtype=torch.int64), op=dist.ReduceOp.AVG)


@on_ranks(4, backend="shm+gloo", hosts=(0, 1, 0, 1))
def test_a_list_to_be_reduced_may_have_several_sizes(rank: int) -> None:
    size = dist.get_world_size()
    all_reduce.CHUNK_BYTES = collectives.CHUNK_BYTES = SHORT_CHUNK_BYTES
    for unit in (1, 50_000):
        counts = [unit * (peer + 1) for peer in range(size - 1)] + [0]
        parts = [torch.full((count,), float(peer)) for peer, count in enumerate(counts)]
        output = torch.empty(counts[rank])
        dist.reduce_scatter(output, [part + rank for part in parts])
        assert (output == size * rank + sum(range(size))).all()


@on_ranks(2, backend="shm+gloo")
def test_ranks_of_one_host_are_a_group_of_shm(rank: int) -> None:
    assert isinstance(dist.group.WORLD, ShmProcessGroup)
    assert dist.get_backend() == "shm+gloo"
    dist.all_reduce(tensor := torch.ones(5))
    assert (tensor == 2).all()


@on_ranks(2, backend="gloo")
def test_another_backend_beside_it_is_refused(rank: int) -> None:
    group = dist.new_group(backend="cpu:shm+gloo,cuda:gloo")
    with pytest.raises(ValueError, match=r"devices, got a group of cpu:shm\+gloo,cuda:gloo; make"):
        dist.barrier(group)

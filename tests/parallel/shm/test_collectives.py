"""Every collective against its definition, and against gloo's."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import _coalescing_manager

from tests.benchmarks import staged_ranks
from tests.parallel.ranks import on_ranks, run_ranks
from tests.parallel.shm.cases import (
    FLOATS,
    INTEGERS,
    MOVES,
    OPERATORS,
    OTHERS,
    REDUCTIONS,
    Case,
    call,
    run_random_cases,
    same_bits,
)

IN_FLIGHT = 8
# Together 10,000, the most where sums have one order only.
RANDOM_CASES = {2: 7000, 3: 3000}
GLOO_SIZE = 1000


def _check(case: Case, output: Tensor, result: Tensor) -> None:
    assert same_bits(output, result), case


@pytest.mark.slow
@on_ranks(*RANDOM_CASES, backend="shm", timeout=100)
def test_ten_thousand_random_collectives_are_exact(rank: int) -> None:
    """Some of them in flight together, on the world and on groups of some of its ranks."""
    size = dist.get_world_size()
    groups = [(dist.group.WORLD, size), (dist.new_group(backend="shm"), size)]
    if size > 2:
        groups.append((dist.new_group(list(range(size - 1)), backend="shm"), size - 1))
    run_random_cases(groups, RANDOM_CASES[size], _check, in_flight=IN_FLIGHT)


def _every_kind_as_gloo(rank: int) -> int:
    gloo = dist.new_group(backend="gloo")
    size = dist.get_world_size()
    compared = 0
    for number, (kind, dtype) in enumerate(product(REDUCTIONS + MOVES, FLOATS + INTEGERS + OTHERS)):
        for operator in OPERATORS if kind in REDUCTIONS else ("none",):
            case = Case(kind, dtype, GLOO_SIZE, operator, number % size, False, False, number)
            try:
                theirs, work = call(case, gloo)
            except (RuntimeError, ValueError, TypeError):
                continue  # not taken by gloo
            if work is not None:
                work.wait()
            ours, work = call(case, dist.group.WORLD)
            if work is not None:
                work.wait()
            exact = dtype in INTEGERS + OTHERS[:2] or operator not in ("sum", "product")
            for one, other in zip(ours, theirs, strict=True):
                if exact or size == 2:
                    assert same_bits(one, other), case
                else:
                    torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-2)
            compared += 1
    return compared


@pytest.mark.parametrize("size", [2, 3])
def test_results_are_gloos_for_all_that_gloo_takes(tmp_path: Path, size: int) -> None:
    for compared in run_ranks(_every_kind_as_gloo, tmp_path / "store", size, backend="shm"):
        assert compared > 150


@on_ranks(3, backend="shm")
def test_averages_divide_by_the_number_of_ranks(rank: int) -> None:
    size = dist.get_world_size()
    for dtype, numel in product((torch.float32, torch.bfloat16, torch.float64), (3, 100_000)):
        tensor = torch.full((numel,), float(rank), dtype=dtype)
        dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
        assert same_bits(tensor, torch.full((numel,), (size - 1) / 2, dtype=dtype))
    with pytest.raises(ValueError, match=r"cannot reduce torch\.int64 with AVG"):
        dist.all_reduce(torch.ones(2, dtype=torch.int64), op=dist.ReduceOp.AVG)


@on_ranks(3, backend="shm")
def test_objects_uneven_splits_and_odd_tensors_travel(rank: int) -> None:
    size = dist.get_world_size()
    everything: list[object] = [None] * size
    dist.all_gather_object(everything, {"rank": rank, "text": "x" * rank})
    assert everything == [{"rank": peer, "text": "x" * peer} for peer in range(size)]
    told: list[object] = [("a", 1) if rank == 1 else None]
    dist.broadcast_object_list(told, src=1)
    assert told == [("a", 1)]
    # Rank r sends r + s rows to rank s.
    rows = [rank + peer for peer in range(size)]
    output = torch.empty(sum(rows), 5)
    dist.all_to_all_single(output, torch.full((sum(rows), 5), float(rank)), rows, rows)
    whose = torch.repeat_interleave(torch.arange(size), torch.tensor(rows)).float()
    assert torch.equal(output, whose[:, None].expand(-1, 5))
    # Transposed, so that neither operand nor result is contiguous; and one that needs a gradient.
    matrix = torch.arange(6.0).view(2, 3).t().requires_grad_()
    dist.all_reduce(matrix)
    assert torch.equal(matrix, size * torch.arange(6.0).view(2, 3).t())


@on_ranks(2, backend="shm")
def test_coalesced_collectives_work(rank: int) -> None:
    size = dist.get_world_size()
    tensors = [torch.full((numel,), float(rank)) for numel in (1, 50_000, 7)]
    with _coalescing_manager(async_ops=True) as pending:
        for tensor in tensors:
            dist.all_reduce(tensor)
    pending.wait()
    assert all((tensor == sum(range(size))).all() for tensor in tensors)
    outputs = [torch.empty(size * 2), torch.empty(size * 3)]
    with _coalescing_manager():
        for output in outputs:
            dist.all_gather_single(output, torch.full((output.numel() // size,), float(rank)))
    for output in outputs:
        ranks = torch.arange(size).repeat_interleave(output.numel() // size)
        assert torch.equal(output, ranks.float())


def test_one_rank_of_a_large_group_is_driven_alone_by_the_benchmark_of_staging() -> None:
    member = staged_ranks._member(16)
    assert staged_ranks._seconds(member, torch.ones(300_000)) > 0

"""Every collective against its definition, and against gloo's."""

from __future__ import annotations

import warnings
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from dpbench.parallel.shm import zeros
from tests.parallel.shm.cases import (
    FLOATS,
    HAS_WHOLES,
    INTEGERS,
    MOVES,
    OPERATORS,
    OTHERS,
    REDUCTIONS,
    SIZES,
    Case,
    call,
    same_bits,
)
from tests.parallel.worlds import World

IN_FLIGHT = 8
SMALL, LARGE = 5, 300_000

world = World(backend="shm", sizes=(2, 4))
# torch renames all_gather_into_tensor and reduce_scatter_tensor, and warns of the old names.
warnings.simplefilter("ignore", FutureWarning)


@world.body
def results_are_gloos_for_all_that_gloo_takes(rank: int) -> None:
    """Some in flight together, of many sizes, and on a group of some of the ranks."""
    size = dist.get_world_size()
    members = list(range(size - 1 if size > 2 else size))
    groups = [(dist.group.WORLD, dist.new_group(backend="gloo"))]
    groups.append((dist.new_group(members, backend="shm"), dist.new_group(members, backend="gloo")))
    flying: list[tuple[Case, list[Tensor], list[Tensor], dist.Work | None]] = []
    compared = 0
    for number, (kind, dtype) in enumerate(product(REDUCTIONS + MOVES, FLOATS + INTEGERS + OTHERS)):
        (shm, gloo), count = groups[number % 2], (size, len(members))[number % 2]
        for turn, operator in enumerate(OPERATORS if kind in REDUCTIONS else ("none",)):
            if rank >= count:
                continue
            case = Case(
                kind=kind,
                dtype=dtype,
                numel=SIZES[(number + turn) % len(SIZES)],
                operator=operator,
                root=number % count,
                strided=(number + turn) % 5 == 0,
                asynchronous=turn % 2 == 0,
                seed=number,
            )
            try:
                theirs, work = call(replace(case, strided=False), gloo)
                if work is not None:
                    work.wait()
            except (RuntimeError, ValueError, TypeError):
                continue  # not taken by gloo
            flying.append((case, theirs, *call(case, shm)))
            compared += 1
        if len(flying) >= IN_FLIGHT or kind == MOVES[-1]:
            while flying:
                compare(rank, *flying.pop(0))
    assert compared > 120 or rank not in members


def compare(
    rank: int, case: Case, theirs: list[Tensor], ours: list[Tensor], work: dist.Work | None
) -> None:
    if work is not None:
        work.wait()
    if case.kind == "reduce" and rank != case.root:
        return  # gloo leaves anything there
    exact = case.dtype in INTEGERS + OTHERS[:2] or case.operator not in ("sum", "product")
    for one, other in zip(ours, theirs, strict=True):
        if exact or dist.get_world_size() == 2:
            assert same_bits(one, other), case
        else:
            rounding = 16 * torch.finfo(case.dtype).eps  # gloo adds in another order
            torch.testing.assert_close(one, other, rtol=rounding, atol=rounding)


@world.body
def averages_divide_by_the_number_of_ranks(rank: int) -> None:
    size = dist.get_world_size()
    for dtype, numel in product((torch.float32, torch.bfloat16, torch.float64), (3, 100_000)):
        tensor = torch.full((numel,), float(rank), dtype=dtype)
        dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
        assert same_bits(tensor, torch.full((numel,), (size - 1) / 2, dtype=dtype))


@world.body
def results_may_go_where_operands_are(rank: int) -> None:
    size = dist.get_world_size()
    if not HAS_WHOLES:
        return
    for numel in (SMALL, LARGE):
        everything = torch.arange(size * numel, dtype=torch.float32)
        mine = slice(rank * numel, (rank + 1) * numel)
        whole = torch.where(torch.arange(size * numel) // numel == rank, everything, -1.0)
        dist.all_gather_into_tensor(whole, whole[mine])
        assert torch.equal(whole, everything)
        whole += rank
        dist.reduce_scatter_tensor(whole[mine], whole)
        assert torch.equal(whole[mine], size * everything[mine] + sum(range(size)))


@world.body
def an_all_reduce_is_the_same_wherever_the_tensors_lie(rank: int) -> None:
    group, size = dist.group.WORLD, dist.get_world_size()
    sizes, cpu = (3, 16_385, 300_001), torch.device("cpu")
    spaces = [zeros(group, max(sizes) + 100, torch.float32, cpu) for _ in range(2)]
    assert all((space == 0).all() for space in spaces)
    operators = (dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.MAX)
    for numel, op, asynchronous in product(sizes, operators, (True, False)):
        values = [torch.arange(numel) * 0.1 + peer for peer in range(size)]
        plain = values[rank].clone()
        dist.all_reduce(plain, op=op)
        # In the group's memory at one offset, at several, in two allocations, in and out.
        places = [
            spaces[0][100:],
            spaces[0][rank:],
            spaces[rank % 2],
            spaces[0] if rank else torch.empty(numel),
        ]
        for place in places:
            tensor = place[:numel].copy_(values[rank])
            work = dist.all_reduce(tensor, op=op, async_op=asynchronous)
            if work is not None:
                work.wait()
            assert same_bits(tensor, plain)


@world.body_on(2)
def what_differs_between_ranks_is_an_error_on_every_rank(rank: int) -> None:
    pairs: list[tuple[Any, Any, str]] = [
        (
            lambda group: dist.all_reduce(torch.ones(4), group=group),
            lambda group: dist.all_reduce(torch.ones(5), group=group),
            r"all_reduce\(SUM, 4 × torch.float32\).*all_reduce\(SUM, 5 × torch.float32\)",
        ),
        (
            lambda group: dist.all_reduce(torch.ones(100_000), group=group),
            lambda group: dist.all_reduce(torch.ones(100_000).double(), group=group),
            "100000 × torch.float32.*100000 × torch.float64",
        ),
        (
            lambda group: dist.all_reduce(torch.ones(4), group=group),
            lambda group: dist.all_reduce(torch.ones(4), dist.ReduceOp.MAX, group),
            "SUM.*MAX",
        ),
        (
            lambda group: dist.broadcast(torch.ones(4), 0, group),
            lambda group: dist.broadcast(torch.ones(4), 1, group),
            "root 0.*root 1",
        ),
        (
            dist.barrier,
            lambda group: dist.all_reduce(torch.ones(4), group=group),
            r"barrier\(\).*all_reduce\(SUM",
        ),
    ]
    for mine, others, text in pairs:
        group = dist.new_group(backend="shm")
        with pytest.raises(dist.DistBackendError, match=f"ranks disagree: .*{text}"):
            (others if rank == 1 else mine)(group)
        with pytest.raises(dist.DistBackendError, match="can no longer be used: ranks disagree"):
            dist.barrier(group)


@world.body_on(2)
def one_element_is_not_repeated_where_more_are_expected(rank: int) -> None:
    group = dist.new_group(backend="shm")
    outputs = [torch.zeros(1), torch.zeros(1 if rank else 3)]
    inputs = [torch.ones(1), torch.ones(1)]
    if rank == 1:
        dist.all_to_all(outputs, inputs, group=group)
        return
    with pytest.raises(ValueError, match="rank 1 sent 1 elements in all_to_all, expected 3"):
        dist.all_to_all(outputs, inputs, group=group)


test_on_ranks = world.test()

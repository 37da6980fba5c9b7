"""Every collective against its definition, and against gloo's."""

from __future__ import annotations

import random
import warnings
from itertools import product

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from dpbench.parallel.shm import zeros
from tests.parallel.shm.cases import (
    FLOATS,
    INTEGERS,
    MOVES,
    OPERATORS,
    OTHERS,
    REDUCTIONS,
    Case,
    call,
    expected,
    random_case,
    same_bits,
)
from tests.parallel.worlds import World

IN_FLIGHT = 8
RANDOM_CASES = {2: 400, 4: 200}
GLOO_SIZE = 1000
SMALL, LARGE = 5, 300_000

world = World(backend="shm", sizes=(2, 4))
# torch renames all_gather_into_tensor and reduce_scatter_tensor, and warns of the old names.
warnings.simplefilter("ignore", FutureWarning)


@world.body
def random_collectives_are_exact(rank: int) -> None:
    """Some of them in flight together, on the world and on groups of some of its ranks."""
    size = dist.get_world_size()
    groups = [(dist.group.WORLD, size), (dist.new_group(backend="shm"), size)]
    if size > 2:
        groups.append((dist.new_group(list(range(size - 1)), backend="shm"), size - 1))
    rng = random.Random(20260101)
    flying: list[tuple[Case, int, list[Tensor], dist.Work | None]] = []
    for number in range(RANDOM_CASES[size]):
        group, members = groups[rng.randrange(len(groups))]
        case = random_case(rng, members)
        if rank < members:
            flying.append((case, members, *call(case, group)))
        if len(flying) == IN_FLIGHT or number == RANDOM_CASES[size] - 1:
            for flown, members, outputs, work in flying:
                if work is not None:
                    work.wait()
                results = expected(flown, rank, members)
                assert len(outputs) == len(results), flown
                for output, result in zip(outputs, results, strict=True):
                    assert same_bits(output, result), flown
            flying.clear()


@world.body
def results_are_gloos_for_all_that_gloo_takes(rank: int) -> None:
    gloo = dist.new_group(backend="gloo")
    size = dist.get_world_size()
    compared = 0
    for number, (kind, dtype) in enumerate(product(REDUCTIONS + MOVES, FLOATS + INTEGERS + OTHERS)):
        for operator in OPERATORS if kind in REDUCTIONS else ("none",):
            case = Case(kind, dtype, GLOO_SIZE, operator, number % size, False, False, number)
            try:
                theirs, _ = call(case, gloo)
            except (RuntimeError, ValueError, TypeError):
                continue  # not taken by gloo
            ours, _ = call(case, dist.group.WORLD)
            if case.kind == "reduce" and rank != case.root:
                continue  # gloo leaves anything there
            exact = dtype in INTEGERS + OTHERS[:2] or operator not in ("sum", "product")
            for one, other in zip(ours, theirs, strict=True):
                if exact or size == 2:
                    assert same_bits(one, other), case
                else:
                    rounding = 16 * torch.finfo(dtype).eps  # gloo adds in another order
                    torch.testing.assert_close(one, other, rtol=rounding, atol=rounding)
            compared += 1
    assert compared > 120


@world.body
def averages_divide_by_the_number_of_ranks(rank: int) -> None:
    size = dist.get_world_size()
    for dtype, numel in product((torch.float32, torch.bfloat16, torch.float64), (3, 100_000)):
        tensor = torch.full((numel,), float(rank), dtype=dtype)
        dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
        assert same_bits(tensor, torch.full((numel,), (size - 1) / 2, dtype=dtype))
    with pytest.raises(ValueError, match=r"cannot reduce torch\.int64 with AVG"):
        dist.all_reduce(torch.ones(2, dtype=torch.int64), op=dist.ReduceOp.AVG)


@world.body
def objects_and_uneven_splits_travel(rank: int) -> None:
    size = dist.get_world_size()
    everything: list[object] = [None] * size
    dist.all_gather_object(everything, {"rank": rank, "text": "x" * rank})
    assert everything == [{"rank": peer, "text": "x" * peer} for peer in range(size)]
    received: list[object] = [("a", 1) if rank == 1 else None]
    dist.broadcast_object_list(received, src=1)
    assert received == [("a", 1)]
    # Rank r sends r + s rows to rank s.
    rows = [rank + peer for peer in range(size)]
    output = torch.empty(sum(rows), 5)
    dist.all_to_all_single(output, torch.full((sum(rows), 5), float(rank)), rows, rows)
    whose = torch.repeat_interleave(torch.arange(size), torch.tensor(rows)).float()
    assert torch.equal(output, whose[:, None].expand(-1, 5))


@world.body
def results_may_go_where_operands_are(rank: int) -> None:
    size = dist.get_world_size()
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
    pairs = [
        (
            lambda: dist.all_reduce(torch.ones(4)),
            lambda: dist.all_reduce(torch.ones(5)),
            r"all_reduce\(SUM, 4 × torch.float32\).*all_reduce\(SUM, 5 × torch.float32\)",
        ),
        (
            lambda: dist.all_reduce(torch.ones(100_000)),
            lambda: dist.all_reduce(torch.ones(100_000, dtype=torch.float64)),
            "100000 × torch.float32.*100000 × torch.float64",
        ),
        (
            lambda: dist.all_reduce(torch.ones(4)),
            lambda: dist.all_reduce(torch.ones(4), op=dist.ReduceOp.MAX),
            "SUM.*MAX",
        ),
        (
            lambda: dist.broadcast(torch.ones(4), 0),
            lambda: dist.broadcast(torch.ones(4), 1),
            "root 0.*root 1",
        ),
        (
            lambda: dist.reduce(torch.ones(4), 0),
            lambda: dist.all_reduce(torch.ones(4)),
            r" reduce\(SUM.* all_reduce\(SUM",
        ),
        (dist.barrier, lambda: dist.all_reduce(torch.ones(4)), r"barrier\(\).*all_reduce\(SUM"),
        (
            lambda: dist.all_to_all_single(torch.ones(4), torch.ones(4), [1, 3], [1, 3]),
            lambda: dist.all_to_all_single(torch.ones(4), torch.ones(4), [2, 2], [2, 2]),
            "rank 0 sends 3 elements to rank 1, which expects 2",
        ),
    ]
    for mine, others, text in pairs:
        with pytest.raises(dist.DistBackendError, match=f"ranks disagree: .*{text}"):
            (others if rank == 1 else mine)()
    # All ranks came to the same point, so the group is as good as before.
    dist.all_reduce(tensor := torch.ones(4))
    assert (tensor == 2).all()


test_on_ranks = world.test()

"""Every collective against its definition, and against gloo's; on a GPU, if there is one, too."""

from __future__ import annotations

import warnings
from functools import cache
from itertools import cycle, product
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from dpbench.parallel.shm import allocate_group_zeros
from tests.parallel.ranks import World, finish
from tests.recording_cuda import GPU, GpuTensor, RecordingCuda, put_into_parallel

HAS_WHOLES = hasattr(dist, "all_gather_single")
"""Whether shm has all_gather_into_tensor and reduce_scatter_tensor: from torch 2.13 on."""
KINDS = ["all_reduce", "broadcast", "all_gather", "gather"]
if HAS_WHOLES:
    KINDS += ["all_gather_into_tensor", "reduce_scatter_tensor"]
OPERATORS = [
    getattr(dist.ReduceOp, name) for name in ("SUM", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")
]
INEXACT = OPERATORS[:2]
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
DTYPES = (*FLOATS, *INTEGERS, torch.complex64, torch.float8_e4m3fn)
SIZES = (0, 1, 3, 1000, 16_384, 16_385, 100_003, 600_001)
"""Around the limits of the slots and the staging buffers, for elements of 4 bytes."""
IN_FLIGHT = 8
SMALL, LARGE = 5, 300_000

CURRENT, SIDE = f"stream of {GPU}", f"side stream of {GPU}"
TO_HOST = [
    *(f"{SIDE} waits for {CURRENT}", f"begin {SIDE}", "copy to the host"),
    *(f"{SIDE} uses the tensor", f"record on {SIDE}", f"end {SIDE}", "wait for the event"),
]
BACK = [
    *(f"begin {SIDE}", "copy to the GPU", f"{SIDE} uses the tensor", f"record on {SIDE}"),
    *(f"end {SIDE}", f"{CURRENT} waits for the event"),
]

world = World(backend="shm", sizes=(2, 4))
on_gpu = World(backend="shm")
# torch renames all_gather_into_tensor and reduce_scatter_tensor, and warns of the old names.
warnings.simplefilter("ignore", FutureWarning)
warnings.filterwarnings("ignore", ".*all_reduce_coalesced")


@cache
def pool(dtype: torch.dtype) -> Tensor:
    """Operands are pieces of one pool, as random numbers would take most of the time."""
    generator, size = torch.Generator().manual_seed(1), max(SIZES) + 1000
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(size, generator=generator).to(dtype)
    return torch.randint(0, 100, (size,), generator=generator).to(dtype)


def issue(
    kind: str, group: dist.ProcessGroup, dtype: torch.dtype, numel: int, op: Any, *, later: bool
) -> tuple[list[Tensor], dist.Work | None]:
    """Call a collective on operands that depend on the rank; what it writes, and its work."""
    rank, size = group.rank(), group.size()
    root, at_root = dist.get_global_rank(group, numel % size), rank == numel % size
    operand, *parts = (pool(dtype)[37 * rank + part :][:numel].clone() for part in range(size + 1))
    outputs = [torch.zeros_like(operand) for _ in parts]
    options: dict[str, Any] = {"group": group, "async_op": later}
    match kind:
        case "all_reduce":
            return [operand], dist.all_reduce(operand, op, **options)
        case "reduce_scatter_tensor":
            return [operand], dist.reduce_scatter_tensor(operand, torch.cat(parts), op, **options)
        case "broadcast":
            return [operand], dist.broadcast(operand, root, **options)
        case "all_gather":
            return outputs, dist.all_gather(outputs, operand, **options)
        case "all_gather_into_tensor":
            whole = torch.cat(outputs)
            return [whole], dist.all_gather_into_tensor(whole, operand, **options)
        case _:
            wanted = outputs if at_root else None
            return wanted or [], dist.gather(operand, wanted, root, **options)


@world.body
def results_are_gloos_for_all_that_gloo_takes(rank: int) -> None:
    """Some in flight together, of many sizes, and on a group of some of the ranks."""
    members = list(range(max(2, dist.get_world_size() - 1)))
    pairs = [
        (dist.group.WORLD, dist.new_group(backend="gloo")),
        (dist.new_group(members, backend="shm"), dist.new_group(members, backend="gloo")),
    ]
    numels, flying, compared = cycle(SIZES), [], 0
    for number, (kind, dtype) in enumerate(product(KINDS, DTYPES)):
        (shm, gloo), is_member = pairs[number % 2], number % 2 == 0 or rank in members
        for op in OPERATORS if "reduce" in kind else ("none",):
            numel = next(numels)
            if not is_member:
                continue
            try:
                expected, _ = issue(kind, gloo, dtype, numel, op, later=False)
            except (RuntimeError, ValueError, TypeError):
                continue  # not taken by gloo
            found, work = issue(kind, shm, dtype, numel, op, later=number % 4 < 2)
            # gloo adds the numbers of more than two ranks in another order.
            rounds = dtype not in INTEGERS and op in INEXACT and shm.size() > 2
            flying.append((f"{kind}, {dtype}, {numel}, {op}", expected, found, work, rounds))
            compared += 1
        if len(flying) >= IN_FLIGHT:
            check(flying)
    check(flying)
    assert compared > 40


def check(flying: list[tuple[str, list[Tensor], list[Tensor], dist.Work | None, bool]]) -> None:
    while flying:
        case, expected, found, work, rounds = flying.pop(0)
        finish(work)
        for got, want in zip(found, expected, strict=True):
            if rounds:
                rounding = 16 * torch.finfo(got.dtype).eps
                torch.testing.assert_close(got, want, rtol=rounding, atol=rounding)
            else:
                assert torch.equal(got.view(torch.uint8), want.view(torch.uint8)), case


@world.body
def averages_divide_by_the_number_of_ranks(rank: int) -> None:
    size = dist.get_world_size()
    for dtype, numel in product((torch.float32, torch.bfloat16, torch.float64), (3, 100_000)):
        tensor = torch.full((numel,), float(rank), dtype=dtype)
        dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
        assert torch.equal(tensor, torch.full((numel,), (size - 1) / 2, dtype=dtype))


@world.body
def results_may_go_where_operands_are(rank: int) -> None:
    """Anywhere, in the group's memory at one offset, and at several."""
    size, cpu = dist.get_world_size(), torch.device("cpu")
    if not HAS_WHOLES:
        return
    space = allocate_group_zeros(dist.group.WORLD, size * LARGE + 100, torch.float32, cpu)
    for numel, place in product((SMALL, LARGE), (None, space[100:], space[rank:])):
        everything = torch.arange(size * numel, dtype=torch.float32)
        own_part = slice(rank * numel, (rank + 1) * numel)
        whole = torch.where(torch.arange(size * numel) // numel == rank, everything, -1.0)
        if place is not None:
            whole = place[: size * numel].copy_(whole)
        dist.all_gather_into_tensor(whole, whole[own_part])
        assert torch.equal(whole, everything)
        whole += rank
        expected = size * everything[own_part] + sum(range(size))
        dist.reduce_scatter_tensor(elsewhere := torch.empty(numel), whole)
        assert torch.equal(elsewhere, expected)
        dist.reduce_scatter_tensor(whole[own_part], whole)
        assert torch.equal(whole[own_part], expected)


@world.body
def an_all_reduce_is_the_same_wherever_the_tensors_lie(rank: int) -> None:
    group, size = dist.group.WORLD, dist.get_world_size()
    sizes, cpu = (3, 16_385, 300_001), torch.device("cpu")
    spaces = [allocate_group_zeros(group, max(sizes) + 100, torch.float32, cpu) for _ in range(2)]
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
            finish(dist.all_reduce(tensor, op=op, async_op=asynchronous))
            assert torch.equal(tensor, plain)


@world.body_on(2)
def what_differs_between_ranks_is_an_error_on_every_rank(rank: int) -> None:
    def reduce(tensor: Tensor, op: Any = dist.ReduceOp.SUM) -> Any:
        return lambda group: dist.all_reduce(tensor, op, group)

    four, many = torch.ones(4), torch.ones(100_000)
    for call, other_call, text in (
        (
            reduce(four),
            reduce(torch.ones(5)),
            r"all_reduce\(SUM, 4 × torch.float32\).*all_reduce\(SUM, 5 × torch.float32\)",
        ),
        (
            reduce(many),
            reduce(many.long(), dist.ReduceOp.MAX),
            "SUM, 100000 × torch.float32.*MAX, 100000 × torch.int64",
        ),
        (
            lambda group: dist.broadcast(four, 0, group),
            lambda group: dist.broadcast(four, 1, group),
            "root 0.*root 1",
        ),
        (dist.barrier, reduce(four), r"barrier\(\).*all_reduce\(SUM"),
    ):
        group = dist.new_group(backend="shm")
        with pytest.raises(dist.DistBackendError, match=f"ranks disagree: .*{text}"):
            (other_call if rank == 1 else call)(group)
        with pytest.raises(dist.DistBackendError, match="can no longer be used: ranks disagree"):
            dist.barrier(group)


@world.body_on(2)
def shm_copies_tensors_of_gpus_through_the_host_in_the_order_of_their_streams(rank: int) -> None:
    group = dist.new_group(backend="shm")
    with pytest.MonkeyPatch.context() as patch:
        for numel in (3, 100_000):
            cuda = RecordingCuda()
            put_into_parallel(cuda, patch)
            tensor = torch.ones(numel).as_subclass(GpuTensor)
            group.allreduce([tensor]).wait()
            assert cuda.calls == TO_HOST + BACK
            assert (tensor.as_subclass(Tensor) == 2).all()


@on_gpu.body
def cuda_tensors_get_what_tensors_on_the_cpu_get(rank: int) -> None:
    """On one GPU, which both ranks share."""
    gpu, size = torch.device("cuda", 0), dist.get_world_size()
    for numel, later in product((5, 300_000), (False, True)):
        given = torch.arange(float(numel)) + rank
        moved = (given.to(gpu) - 1).add_(1)  # still being computed when the collective is called
        finish(dist.all_reduce(moved, async_op=later))
        doubled = moved * 2  # on a stream that has to wait for the result
        dist.all_reduce(given)
        assert torch.equal(doubled.cpu(), given * 2)
        strided = torch.zeros(2 * numel, device=gpu)[::2]
        outputs = [strided, torch.zeros(numel, device=gpu)]
        dist.all_gather(outputs, torch.full((numel,), float(rank), device=gpu))
        assert [tensor[-1].item() for tensor in outputs] == list(range(size))
        dist.broadcast(outputs[0], 1)
        assert (outputs[0] == 0).all()
    with torch.inference_mode():
        dist.all_reduce(inside := torch.ones(5, device=gpu))
        assert (inside == size).all()


test_on_ranks = world.test()
test_on_a_gpu = pytest.mark.gpu(on_gpu.test())

"""Collectives: what each rank gives, and how they are called."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

OPERATORS = {
    "sum": dist.ReduceOp.SUM,
    "product": dist.ReduceOp.PRODUCT,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "band": dist.ReduceOp.BAND,
    "bor": dist.ReduceOp.BOR,
    "bxor": dist.ReduceOp.BXOR,
}
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int8, torch.uint8, torch.int32, torch.int64)
OTHERS = (torch.bool, torch.int16, torch.complex64, torch.float8_e4m3fn)
HAS_WHOLES = hasattr(dist, "all_gather_single")
"""Whether shm has all_gather_into_tensor and reduce_scatter_tensor: from torch 2.13 on."""
REDUCTIONS = ["all_reduce", "reduce", "reduce_scatter"]
MOVES = ["broadcast", "all_gather", "gather", "scatter", "all_to_all", "all_to_all_single"]
if HAS_WHOLES:
    REDUCTIONS.append("reduce_scatter_tensor")
    MOVES.insert(0, "all_gather_into_tensor")
SIZES = (0, 1, 2, 3, 64, 1000, 8191, 16383, 16384, 16385, 100_003, 600_001)
"""Around the limits of the slots and the staging buffers, for elements of 4 bytes."""
_SPREAD = 10_000


@cache
def _pool(dtype: torch.dtype) -> Tensor:
    """Tensors are pieces of one pool, as random numbers would take most of the time."""
    generator = torch.Generator().manual_seed(1)
    size = 2 * _SPREAD + max(SIZES)
    if dtype.is_floating_point or dtype.is_complex:
        values = torch.randn(size, generator=generator, dtype=torch.float64)
        return values.to(dtype)
    return torch.randint(0, 100, (size,), generator=generator).to(dtype)


@dataclass(frozen=True, slots=True)
class Case:
    """One collective of a group."""

    kind: str
    dtype: torch.dtype
    numel: int
    operator: str
    root: int
    strided: bool
    asynchronous: bool
    seed: int

    def given(self, rank: int, parts: int = 1) -> list[Tensor]:
        """What a rank gives: one tensor, or one for each rank."""
        start = (self.seed * 31 + rank * 4099) % _SPREAD
        values = _pool(self.dtype)
        pieces = [values[start + 17 * part :][: self.numel] for part in range(parts)]
        return [self._laid_out(piece.clone()) for piece in pieces]

    def empty(self, factor: int = 1) -> Tensor:
        """Room for a result."""
        return self._laid_out(torch.zeros(self.numel * factor, dtype=torch.uint8).to(self.dtype))

    def _laid_out(self, values: Tensor) -> Tensor:
        """With gaps between the elements, if the case says so."""
        if not self.strided:
            return values
        wide = torch.zeros(2 * values.numel(), dtype=torch.uint8).to(values.dtype)
        # Not through a slice assignment, which the 8-bit floats do not have.
        laid_out = wide.view(-1, 2)[:, 0]
        laid_out.copy_(values)
        return laid_out


def call(case: Case, group: dist.ProcessGroup) -> tuple[list[Tensor], dist.Work | None]:
    """Issue the collective on this rank; the tensors that it writes, and its work."""
    rank, size = group.rank(), group.size()
    root = dist.get_global_rank(group, case.root)
    options: dict[str, Any] = {"group": group, "async_op": case.asynchronous}
    if case.kind in REDUCTIONS:
        return _call_reduction(case, rank, size, root, options)
    [mine] = case.given(rank)
    if case.kind == "broadcast":
        return [mine], dist.broadcast(mine, src=root, **options)
    outputs = [case.empty() for _ in range(size)]
    if case.kind == "all_gather":
        return outputs, dist.all_gather(outputs, mine, **options)
    if case.kind == "all_gather_into_tensor":
        whole = case.empty(size)
        return [whole], dist.all_gather_into_tensor(whole, mine, **options)
    if case.kind == "gather":
        at_root = rank == case.root
        work = dist.gather(mine, outputs if at_root else None, dst=root, **options)
        return outputs if at_root else [], work
    inputs = case.given(rank, size)
    if case.kind == "scatter":
        work = dist.scatter(outputs[0], inputs if rank == case.root else None, src=root, **options)
        return outputs[:1], work
    if case.kind == "all_to_all":
        return outputs, dist.all_to_all(outputs, inputs, **options)
    whole = case.empty(size)
    return [whole], dist.all_to_all_single(whole, _joined(case, inputs), **options)


def _call_reduction(
    case: Case, rank: int, size: int, root: int, options: dict[str, Any]
) -> tuple[list[Tensor], dist.Work | None]:
    options["op"] = OPERATORS[case.operator]
    if case.kind == "all_reduce":
        [mine] = case.given(rank)
        return [mine], dist.all_reduce(mine, **options)
    if case.kind == "reduce":
        [mine] = case.given(rank)
        work = dist.reduce(mine, dst=root, **options)
        return [mine], work
    output, inputs = case.empty(), case.given(rank, size)
    if case.kind == "reduce_scatter":
        return [output], dist.reduce_scatter(output, inputs, **options)
    return [output], dist.reduce_scatter_tensor(output, _joined(case, inputs), **options)


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are equal in dtype, shape and every bit."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return torch.equal(_bytes(one), _bytes(other))


def _bytes(tensor: Tensor) -> Tensor:
    # A tensor of one element counts as contiguous with any stride, so copy always.
    return torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor).view(torch.uint8)


def _joined(case: Case, inputs: Sequence[Tensor]) -> Tensor:
    whole = case.empty(len(inputs))
    torch.cat(list(inputs), out=whole) if not case.strided else whole.copy_(torch.cat(list(inputs)))
    return whole

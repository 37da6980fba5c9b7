"""All-reduce of sparse tensors: every rank gathers all non-zero elements and adds them up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dpbench.parallel.shm import exchanges
from dpbench.parallel.shm.descriptor import Mismatch, pack
from dpbench.parallel.shm.member import Member, Steps

_MOST_DIMENSIONS = 16


def require_sum(op: Any, tensor: Tensor) -> None:
    """
    Raises:
        ValueError: there is no sparse all-reduce for this reduction or this tensor.
    """
    if tensor.layout != torch.sparse_coo or tensor.device.type != "cpu":
        raise ValueError(
            f"shm and shm+gloo reduce sparse tensors with layout torch.sparse_coo on the CPU, got "
            f"{tensor.layout} on {tensor.device}"
        )
    kind: Any = dist.ReduceOp.RedOpType
    if int(getattr(op, "op", op)) != int(kind.SUM):
        raise ValueError(f"shm and shm+gloo reduce sparse tensors with SUM, got {op}")
    if tensor.dim() > _MOST_DIMENSIONS:
        raise ValueError(
            f"shm and shm+gloo reduce sparse tensors of up to {_MOST_DIMENSIONS} dimensions, got "
            f"{tensor.dim()}"
        )


def all_reduce(member: Member, tensor: Tensor) -> Steps[None]:
    """Every rank gets the sum in place of its tensor.

    Args:
        member: this rank.
        tensor: see `require_sum`.

    Raises:
        Mismatch: on every rank: the tensors differ in shape or in their sparse dimensions.
    """
    own = tensor.detach().coalesce()
    indices, values = own.indices(), own.values().contiguous()
    row = [values.shape[0], tensor.sparse_dim(), *tensor.shape]
    rows = member.operands(torch.int64, _MOST_DIMENSIONS + 2)
    described = torch.full((_MOST_DIMENSIONS + 2,), -1, dtype=torch.int64, device="cpu")
    described[: len(row)] = torch.tensor(row, device="cpu")
    rows[member.rank].copy_(described)
    yield from member.meet(pack("sparse_all_reduce", values.dtype))
    everyone = [listed.tolist() for listed in rows]
    _require_one_shape(everyone, member.names)
    counts = [listed[0] for listed in everyone]
    all_indices = yield from _gathered(member, indices, (indices.shape[0], -1), counts)
    all_values = yield from _gathered(member, values, (-1, *values.shape[1:]), counts)
    total = torch.sparse_coo_tensor(
        torch.cat(all_indices, 1), torch.cat(all_values), tensor.shape, check_invariants=False
    ).coalesce()
    # Not to a detached alias, which would get elements of its own for a sparse tensor.
    with torch.no_grad(), torch.inference_mode(tensor.is_inference()):
        tensor.copy_(total)


def _gathered(
    member: Member, own: Tensor, shape: Sequence[int], counts: Sequence[int]
) -> Steps[list[Tensor]]:
    """The tensors of all ranks, with each rank's count in place of -1 in the shape."""
    shapes = [[count if size < 0 else size for size in shape] for count in counts]
    parts = [torch.empty(shape, dtype=own.dtype, device="cpu") for shape in shapes]
    flats = [part.view(-1) for part in parts]
    yield from exchanges.all_gather(member, flats, own.contiguous().view(-1))
    return parts


def _require_one_shape(rows: Sequence[Sequence[int]], names: Sequence[str]) -> None:
    for name, row in zip(names, rows, strict=True):
        if row[1:] != rows[0][1:]:
            raise Mismatch(
                f"ranks disagree: in all_reduce {names[0]} has {_shape(rows[0])}, but {name} has "
                f"{_shape(row)}"
            )


def _shape(row: Sequence[int]) -> str:
    sizes = [size for size in row[2:] if size >= 0]
    return f"a sparse tensor of shape {tuple(sizes)}, {row[1]} of its dimensions sparse"

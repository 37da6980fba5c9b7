"""Do all ranks hold the same model? Asked before the first collective that relies on it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor


class Entry(NamedTuple):
    """What must be equal on all ranks for one parameter, buffer or option."""

    kind: str
    name: str
    description: str


def describe(
    parameters: Iterable[tuple[str, Tensor]],
    buffers: Iterable[tuple[str, Tensor]],
    options: Mapping[str, Any],
) -> list[Entry]:
    """Parameters and buffers in registration order, then the options."""
    entries = [
        Entry("parameter", name, f"{_layout(p)} requires_grad={p.requires_grad}")
        for name, p in parameters
    ]
    entries += [Entry("buffer", name, f"{tuple(b.shape)} {b.dtype}") for name, b in buffers]
    return entries + [Entry("option", name, repr(value)) for name, value in options.items()]


def require_agreement(
    mine: Sequence[Entry], group: dist.ProcessGroup, device: torch.device
) -> None:
    """Compare what every rank of the group holds; a collective.

    Args:
        mine: of this rank.
        group: the ranks.
        device: of the module, through which objects travel where the backend is nccl.

    Raises:
        RuntimeError: on every rank, with the first parameter, buffer or option that differs and
            the ranks that have it differently from rank 0.
    """
    everyone: list[Any] = [None] * dist.get_world_size(group)
    on = torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()
    with on:
        dist.all_gather_object(everyone, list(mine), group=group)
    for entries in zip_longest(*everyone):
        different = [rank for rank, entry in enumerate(entries) if entry != entries[0]]
        if different:
            difference = _difference(entries[0], entries[different[0]], different)
            raise RuntimeError(_unequal_counts(everyone) + difference)


def _unequal_counts(everyone: Sequence[Sequence[Entry]]) -> str:
    """A first sentence, in torch's words, where ranks differ in the number of parameters."""
    counts = [sum(entry.kind == "parameter" for entry in entries) for entries in everyone]
    for rank, count in enumerate(counts):
        if count != counts[0]:
            return (
                f"DDP expects same model across all ranks, but Rank 0 has {counts[0]} params, "
                f"while rank {rank} has inconsistent {count} params. "
            )
    return ""


def _layout(tensor: Tensor) -> str:
    strides = "" if tensor.is_contiguous() else f" strides {tensor.stride()}"
    return f"{tuple(tensor.shape)}{strides} {tensor.dtype}"


def _difference(first: Entry | None, other: Entry | None, ranks: list[int]) -> str:
    def tell(entry: Entry | None) -> str:
        return f"{entry.kind} {entry.name!r}: {entry.description}" if entry else "nothing more"

    which = "rank" if len(ranks) == 1 else "ranks"
    return (
        "DistributedDataParallel expects the same model on all ranks, but rank 0 has "
        f"{tell(first)}, while {which} {', '.join(map(str, ranks))} differ: "
        f"rank {ranks[0]} has {tell(other)}"
    )


def largest(value: int, group: dist.ProcessGroup, device: torch.device) -> int:
    """The largest `value` of all ranks; a collective."""
    tensor = torch.tensor([value], device=device)
    dist.all_reduce(tensor, dist.ReduceOp.MAX, group)
    return int(tensor.item())

"""Do all ranks hold the same model? Asked before the first collective that relies on it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parameter import is_lazy


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
    """The options, then parameters and buffers in registration order."""
    entries = [Entry("option", name, repr(value)) for name, value in options.items()]
    entries += [
        Entry("parameter", name, f"{_layout(p)} requires_grad={p.requires_grad}")
        for name, p in parameters
    ]
    return entries + [Entry("buffer", name, f"{_shape(b)} {b.dtype}") for name, b in buffers]


def require_agreement(
    mine: Sequence[Entry],
    failure: Exception | None,
    group: dist.ProcessGroup,
    device: torch.device,
) -> None:
    """Compare what every rank of the group holds; a collective.

    Args:
        mine: of this rank.
        failure: why this rank cannot go on, so that the others do not wait for it.
        group: the ranks.
        device: of the module, through which objects travel where the backend is nccl.

    Raises:
        RuntimeError: on every rank, with the first parameter, buffer or option that differs and
            the ranks that have it differently from rank 0; or the failures of other ranks.
    """
    everyone: list[Any] = [None] * dist.get_world_size(group)
    on = torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()
    with on:
        dist.all_gather_object(everyone, (list(mine), failure and str(failure)), group=group)
    _require_equal([entries for entries, _ in everyone])
    reasons = [f"rank {rank}: {reason}" for rank, (_, reason) in enumerate(everyone) if reason]
    if reasons and failure is None:
        raise RuntimeError(f"other ranks cannot wrap their module; {'; '.join(reasons)}")


def _require_equal(everyone: Sequence[Sequence[Entry]]) -> None:
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
    lazy = is_lazy(tensor)
    strides = "" if lazy or tensor.is_contiguous() else f" strides {tensor.stride()}"
    return f"{_shape(tensor)}{strides} {tensor.dtype}"


def _shape(tensor: Tensor) -> str:
    # A lazy parameter has none yet.
    return "no shape yet" if is_lazy(tensor) else str(tuple(tensor.shape))


def _difference(first: Entry | None, other: Entry | None, ranks: list[int]) -> str:
    def tell(entry: Entry | None) -> str:
        return f"{entry.kind} {entry.name!r}: {entry.description}" if entry else "nothing more"

    others = ranks[1:]
    also = f"; different from rank 0 too: {', '.join(map(str, others))}" if others else ""
    return (
        "Expected the same on all ranks, but rank 0 has "
        f"{tell(first)}, while rank {ranks[0]} has {tell(other)}{also}"
    )


def largest(value: int, group: dist.ProcessGroup, device: torch.device) -> int:
    """The largest `value` of all ranks; a collective."""
    tensor = torch.tensor([value], device=device)
    dist.all_reduce(tensor, dist.ReduceOp.MAX, group)
    return int(tensor.item())

"""Do all ranks hold the same model? Asked before the first collective that relies on it."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from itertools import zip_longest
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn


class Entry(NamedTuple):
    """What must be equal on all ranks for one parameter, buffer or option."""

    kind: str
    name: str
    description: str


def describe(module: nn.Module, options: Mapping[str, Any]) -> list[Entry]:
    """Parameters and buffers in registration order, then the options."""
    entries = [
        Entry("parameter", name, f"{tuple(p.shape)} {p.dtype} requires_grad={p.requires_grad}")
        for name, p in module.named_parameters()
    ]
    entries += [
        Entry("buffer", name, f"{tuple(buffer.shape)} {buffer.dtype}")
        for name, buffer in module.named_buffers()
    ]
    return entries + [Entry("option", name, repr(value)) for name, value in options.items()]


def require_agreement(
    module: nn.Module, options: Mapping[str, Any], group: dist.ProcessGroup, device: torch.device
) -> None:
    """Compare what every rank of the group holds; a collective.

    Raises:
        RuntimeError: on every rank, with the first parameter, buffer or option that differs and
            the ranks that have it differently from rank 0.
    """
    everyone: list[Any] = [None] * dist.get_world_size(group)
    # Objects travel through the current CUDA device where the backend is nccl.
    on = torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()
    with on:
        dist.all_gather_object(everyone, describe(module, options), group=group)
    for entries in zip_longest(*everyone):
        different = [rank for rank, entry in enumerate(entries) if entry != entries[0]]
        if different:
            raise RuntimeError(_difference(entries[0], entries[different[0]], different))


def _difference(first: Entry | None, other: Entry | None, ranks: list[int]) -> str:
    def tell(entry: Entry | None) -> str:
        return f"{entry.kind} {entry.name!r}: {entry.description}" if entry else "nothing more"

    which = "rank" if len(ranks) == 1 else "ranks"
    return (
        "DistributedDataParallel expects the same model on all ranks, but rank 0 has "
        f"{tell(first)}, while {which} {', '.join(map(str, ranks))} differ: "
        f"rank {ranks[0]} has {tell(other)}"
    )

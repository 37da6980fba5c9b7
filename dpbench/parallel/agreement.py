"""Check that all ranks hold the same, before the first collective that relies on it.

The ranks compare a hash first, in one small message. Only if it differs do they send what they
hold, so that each of them can name the difference.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parameter import is_lazy

from dpbench.parallel.groups import gather_values, name_ranks

_LONGEST_OBJECTION = 2000
"""Longest reason for not going on that a rank sends, in characters; it can quote any error."""


class Entry(NamedTuple):
    """One parameter, buffer or option that must be equal on all ranks."""

    kind: str
    name: str
    description: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r}: {self.description}"


class Objection(RuntimeError):
    """All ranks hold the same, but one of them cannot go on; the message quotes its reason."""


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
    return entries + [Entry("buffer", name, describe_tensor(b)) for name, b in buffers]


def describe_tensor(tensor: Tensor) -> str:
    """Shape and dtype, as in "(3, 4) torch.float32"."""
    # A lazy parameter has no shape yet.
    shape = "no shape yet" if is_lazy(tensor) else str(tuple(tensor.shape))
    return f"{shape} {tensor.dtype}"


def require_agreement(
    caller: str,
    mine: Sequence[Entry],
    group: dist.ProcessGroup,
    *,
    objection: str | None = None,
    device: torch.device | None = None,
) -> None:
    """Compare what every rank of the group holds, in its order; a collective.

    Args:
        caller: names the function in messages.
        mine: what this rank holds.
        group: the ranks.
        objection: why this rank cannot go on, if so; the others must not wait for it.
        device: carries the messages where the group takes CUDA tensors only.

    Raises:
        RuntimeError: on every rank, with the first difference and the ranks that differ from rank
            0.
        Objection: on every rank, with the objection of the first rank that has one.
    """
    held = repr(list(mine)).encode(errors="backslashreplace")
    digest = hashlib.blake2b(held, digest_size=16).hexdigest()
    told = (digest, objection and objection[:_LONGEST_OBJECTION])
    answers = gather_values(told, group, device=device)
    if any(other != digest for other, _ in answers):
        sent = gather_values([list(entry) for entry in mine], group, device=device)
        everyone = [[Entry(*map(str, parts)) for parts in entries] for entries in sent]
        raise RuntimeError(_difference(caller, everyone))
    for _, words in answers:
        if words is not None:
            raise Objection(f"{caller}: {words}")


def _difference(caller: str, everyone: Sequence[Sequence[Entry]]) -> str:
    for entries in zip_longest(*everyone):
        different = [rank for rank, entry in enumerate(entries) if entry != entries[0]]
        if different:
            first, other = entries[0], entries[different[0]]
            return (
                f"{_expectation(caller, everyone)}, but rank 0 has {first or 'nothing more'}, "
                f"while rank {different[0]} has {other or 'nothing more'} "
                f"(not as on rank 0: {name_ranks(different)})"
            )
    return f"{caller}: the ranks hash the same to different values; do they run the same version?"


def _expectation(caller: str, everyone: Sequence[Sequence[Entry]]) -> str:
    """The message if ranks differ in their number of parameters, in torch's searchable words."""
    counts = [sum(entry.kind == "parameter" for entry in entries) for entries in everyone]
    for rank, count in enumerate(counts):
        if count != counts[0]:
            return (
                f"{caller} expects same model across all ranks, but Rank 0 has {counts[0]} params, "
                f"while rank {rank} has inconsistent {count} params: the same was expected"
            )
    return f"{caller}: expected the same on all ranks"


def _layout(tensor: Tensor) -> str:
    if is_lazy(tensor) or tensor.is_contiguous():
        return describe_tensor(tensor)
    return f"{tuple(tensor.shape)} strides {tensor.stride()} {tensor.dtype}"

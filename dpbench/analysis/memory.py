"""Peak memory of a trial."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from dpbench.records import TrialRecord

UNBALANCED = 1.2
"""Largest ÷ mean over ranks from which the memory of a trial is called unbalanced."""

MemoryKind = Literal["device", "host"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PeakMemory:
    """The most that one rank held, and of which memory."""

    bytes: int
    kind: MemoryKind


def peak_memory(records: Sequence[TrialRecord]) -> PeakMemory | None:
    """The largest over ranks and repetitions: allocated on the device, else resident on the host.

    The two are never mixed: one rank with device memory makes it device memory.
    """
    ranks = [rank for record in records for rank in record.ranks]
    device = [rank.peak_device_memory_bytes for rank in ranks]
    host = [rank.peak_host_memory_bytes for rank in ranks]
    measured: tuple[tuple[MemoryKind, list[int | None]], ...] = (("device", device), ("host", host))
    for kind, values in measured:
        known = [value for value in values if value is not None]
        if known:
            return PeakMemory(bytes=max(known), kind=kind)
    return None


def peak_reserved_memory(records: Sequence[TrialRecord]) -> int | None:
    """The most device memory that torch's allocator held on a rank; None without a device."""
    ranks = [rank for record in records for rank in record.ranks]
    reserved = [rank.peak_reserved_memory_bytes for rank in ranks]
    return max((value for value in reserved if value is not None), default=None)


def memory_imbalance(records: Sequence[TrialRecord]) -> float | None:
    """The worst trial's largest ÷ mean peak memory over its ranks; None for a single rank."""
    ratios = []
    for record in records:
        peaks = [
            rank.peak_host_memory_bytes
            if rank.peak_device_memory_bytes is None
            else rank.peak_device_memory_bytes
            for rank in record.ranks
        ]
        known = [peak for peak in peaks if peak is not None]
        if len(known) > 1:
            ratios.append(max(known) * len(known) / sum(known))
    return max(ratios, default=None)

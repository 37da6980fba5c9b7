"""Peak memory of a trial."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from dpbench.records import TrialRecord

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

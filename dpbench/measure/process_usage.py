"""Processor time and page faults of this process, all its threads together."""

from __future__ import annotations

import resource
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Usage:
    """Counters of getrusage, or their differences."""

    cpu_seconds: float
    page_faults: int
    """Minor page faults: pages that the kernel had to map and clear, without reading a disk."""

    def __sub__(self, earlier: Usage) -> Usage:
        return Usage(self.cpu_seconds - earlier.cpu_seconds, self.page_faults - earlier.page_faults)


def usage() -> Usage:
    """Counters since the process began; a call takes about a microsecond."""
    counted = resource.getrusage(resource.RUSAGE_SELF)
    return Usage(counted.ru_utime + counted.ru_stime, counted.ru_minflt)


def total(parts: Sequence[Usage | None]) -> Usage | None:
    """The sum; None if a part was not counted."""
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    return Usage(sum(part.cpu_seconds for part in known), sum(part.page_faults for part in known))

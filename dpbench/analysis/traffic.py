"""What a step of a trial sends between ranks."""

from __future__ import annotations

from collections.abc import Sequence

from dpbench.records import TrialRecord


def reduced_bytes_per_step(records: Sequence[TrialRecord]) -> int | None:
    """Bytes of gradients (or parameters) that a rank hands to all-reduce; the most of any rank."""
    ranks = [rank for record in records for rank in record.ranks]
    known = [r.reduced_bytes_per_step for r in ranks if r.reduced_bytes_per_step is not None]
    return max(known, default=None)


def collectives_per_step(records: Sequence[TrialRecord]) -> float | None:
    """Collective operations that a rank takes part in per step; the most of any rank."""
    ranks = [rank for record in records for rank in record.ranks]
    known = [r.collectives_per_step for r in ranks if r.collectives_per_step is not None]
    return max(known, default=None)

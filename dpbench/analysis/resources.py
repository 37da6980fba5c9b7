"""Resources of a trial's step besides time: memory, traffic between ranks, energy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from dpbench.analysis import throughput
from dpbench.analysis.estimate import Estimate, LogMean
from dpbench.records import RankMeasurement, TrialRecord

UNBALANCED = 1.2
"""Ratio of largest to mean over ranks from which memory is called unbalanced."""

MemoryKind = Literal["device", "host"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PeakMemory:
    """Peak memory of one rank, and the kind of memory."""

    bytes: int
    kind: MemoryKind


def peak_memory(records: Sequence[TrialRecord]) -> PeakMemory | None:
    """The largest peak over ranks and repetitions: allocated on the device, else resident on the
    host.

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
    """The most device memory held by torch's allocator on a rank; None without a device."""
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


def reduced_bytes_per_step(records: Sequence[TrialRecord]) -> int | None:
    """Bytes of gradients (or parameters) that a rank gives to all-reduce; the largest over
    ranks."""
    ranks = [rank for record in records for rank in record.ranks]
    known = [r.reduced_bytes_per_step for r in ranks if r.reduced_bytes_per_step is not None]
    return max(known, default=None)


def collectives_per_step(records: Sequence[TrialRecord]) -> float | None:
    """Number of collectives that a rank takes part in per step; the largest over ranks."""
    ranks = [rank for record in records for rank in record.ranks]
    known = [r.collectives_per_step for r in ranks if r.collectives_per_step is not None]
    return max(known, default=None)


def page_faults_per_step(record: TrialRecord) -> float | None:
    """Minor page faults of a rank's process in a timed step, as the mean over ranks; None if a rank
    did not count them."""
    return _per_step(record, [rank.timed.page_faults for rank in record.ranks])


def cpu_seconds_per_step(record: TrialRecord) -> float | None:
    """Processor time of a rank's process in a timed step, the mean over ranks."""
    return _per_step(record, [rank.timed.cpu_seconds for rank in record.ranks])


def _per_step(record: TrialRecord, counts: Sequence[float | None]) -> float | None:
    known = [count for count in counts if count is not None]
    steps = [len(rank.timed.step_seconds) for rank in record.ranks]
    if not known or len(known) < len(counts) or min(steps) == 0:
        return None
    return fmean(count / number for count, number in zip(known, steps, strict=True))


def joules_per_item(records: Sequence[TrialRecord]) -> Estimate | None:
    """Energy of the GPUs over the timed window ÷ items of all replicas, over repetitions.

    None unless every rank of some repetition reported its energy. Host and network are not
    included.
    """
    values = [value for record in records if (value := _joules_per_item(record)) is not None]
    if not values:
        return None
    return LogMean.of_runs(values).estimate(f"J/{records[0].item.removesuffix('s')}")


def _joules_per_item(record: TrialRecord) -> float | None:
    items = throughput.items(record)
    joules = [_of_device(ranks) for ranks in _ranks_by_device(record)]
    known = [value for value in joules if value is not None]
    if not known or len(known) < len(joules) or items == 0 or sum(known) <= 0:
        return None
    return sum(known) / items


def _ranks_by_device(record: TrialRecord) -> list[list[RankMeasurement]]:
    groups: dict[str, list[RankMeasurement]] = {}
    for rank in record.ranks:
        groups.setdefault(rank.device, []).append(rank)
    return list(groups.values())


def _of_device(ranks: Sequence[RankMeasurement]) -> float | None:
    """Energy of a device. Ranks that share a GPU each read all of it, so they count once, with
    their mean."""
    joules = [rank.energy_joules for rank in ranks if rank.energy_joules is not None]
    return fmean(joules) if len(joules) == len(ranks) else None

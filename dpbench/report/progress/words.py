"""One-line messages about one trial of a sweep, or one measurement of a collective."""

from __future__ import annotations

from statistics import median

from dpbench import units
from dpbench.collectives import CollectiveRecord, CollectiveSpec
from dpbench.records import Status, TrialRecord
from dpbench.specs import TrialSpec

Spec = TrialSpec | CollectiveSpec
Record = TrialRecord | CollectiveRecord


def describe(record: Record) -> str:
    """Writes "ddp/gloo ×2, batch 32, repetition 1: 3,936 images/s (1.2 s)"."""
    took = "" if record.status is Status.SKIPPED else f" ({units.seconds(record.duration_seconds)})"
    return f"{name(spec_of(record))}: {result(record)}{took}"


def spec_of(record: Record) -> Spec:
    return record.trial if isinstance(record, TrialRecord) else record.collective


def name(spec: Spec) -> str:
    return f"{spec.label}, repetition {spec.repetition + 1}"


def result(record: Record) -> str:
    if record.status is not Status.COMPLETED:
        return f"{record.status.words}: {record.reason}"
    if isinstance(record, CollectiveRecord):
        return _slowest_ranks_median(record)
    from dpbench.analysis.throughput import throughput

    return f"{speed(throughput(record))} {record.item}/s"


def speed(items_per_second: float) -> str:
    """Whole items, but three digits at least: "3,936", "0.412"."""
    return f"{items_per_second:,.0f}" if items_per_second >= 100 else f"{items_per_second:.3g}"


def left(seconds: float) -> str:
    return f"{units.seconds(seconds)} left" if seconds >= 1 else "under 1 s left"


def _slowest_ranks_median(record: CollectiveRecord) -> str:
    """Times of the smallest and the largest message: "4 B in 265 µs, 244.1 MiB in 98 ms"."""
    ends = {0, len(record.collective.sizes_bytes) - 1}
    return ", ".join(
        f"{units.bytes_binary(record.collective.sizes_bytes[end])} in "
        f"{units.seconds(max(median(rank.timings[end].seconds) for rank in record.ranks))}"
        for end in sorted(ends)
    )

"""Numbers that nothing measured can have: what reads results need not reckon with them.

Losses are not among them: a diverging loss may be anything.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import fields

from dpbench import units
from dpbench.records import Phases, RankMeasurement, Status, TrialRecord
from dpbench.specs import BACKENDS, IMPLEMENTATIONS, MOST_REPETITIONS, SweepSpec

LONGEST_SECONDS = 1e9
"""Thirty years."""
MOST_FLOPS = 1e30


def impossible_in_spec(spec: SweepSpec) -> Iterator[str]:
    """What no sweep can have been started with."""
    for name in spec.implementations:
        if name not in IMPLEMENTATIONS:
            yield f"no implementation is called {name!r}"
    for name in spec.backends:
        if name not in BACKENDS:
            yield f"no backend is called {name!r}"
    if not all(1 <= size <= len(spec.devices) for size in spec.group_sizes):
        yield f"group sizes {spec.group_sizes} on {units.counted(len(spec.devices), 'device')}"
    if spec.repetitions > MOST_REPETITIONS:
        yield f"repetitions is {spec.repetitions}; expected at most {MOST_REPETITIONS}"
    for name in ("time_limit_seconds", "precision", "budget_seconds", "target_loss"):
        value = getattr(spec, name)
        if value is not None and not 0 < value < math.inf:
            yield f"{name} is {value}; expected a number above 0"


def impossible_in_record(record: TrialRecord) -> Iterator[str]:
    """What no trial can have come out with, so that nothing that reads it must reckon with it."""
    trial = record.trial
    if trial.implementation not in IMPLEMENTATIONS:
        yield f"no implementation is called {trial.implementation!r}"
    if not trial.group_size == len(trial.devices) > 0:
        yield f"group size {trial.group_size} on {units.counted(len(trial.devices), 'device')}"
    for name in ("batch_size", "timed_steps", "accumulation_steps", "sync_every"):
        if getattr(trial, name) < 1:
            yield f"{name} is {getattr(trial, name)}; expected at least 1"
    if not 0 <= record.duration_seconds <= LONGEST_SECONDS:
        yield f"duration_seconds is {record.duration_seconds}"
    if record.flops_per_item is not None and not 0 < record.flops_per_item < MOST_FLOPS:
        yield f"flops_per_item is {record.flops_per_item}"
    completed = record.status is Status.COMPLETED
    if completed and record.ranks and len(record.ranks) != trial.process_count:
        yield f"it holds {len(record.ranks)} of {trial.process_count} ranks"
    for rank in record.ranks:
        peaks = (rank.peak_host_memory_bytes, rank.peak_device_memory_bytes)
        if any(peak is not None and peak < 0 for peak in peaks) or peaks[0] == 0:
            yield f"rank {rank.rank} has a peak memory of {peaks}"
        for name, seconds in _seconds(rank):
            if seconds and not (min(seconds) >= 0 and sum(seconds) <= LONGEST_SECONDS):
                yield f"rank {rank.rank} has impossible seconds in {name}"
        for phases in (rank.phases, rank.phases_without_sync):
            if phases is not None and not _are_whole(_columns(phases)):
                yield f"rank {rank.rank} has phases of no step, of no time, or of unequal steps"
    norms = [rank.gradient_norms for rank in record.ranks if rank.gradient_norms is not None]
    if not _one_length(c for n in norms for c in (n.local_squared, n.global_squared)):
        yield "gradient norms of batches that lack others"
    if any(not 1 <= n.local_samples <= n.global_samples for n in norms):
        yield "gradient norms of impossible numbers of samples"


def _seconds(rank: RankMeasurement) -> Iterator[tuple[str, tuple[float, ...]]]:
    """All times of a rank by where they stand in its measurement."""
    yield "setup_seconds", (rank.setup_seconds,)
    for name, window in (("timed", rank.timed), ("without_sync", rank.without_sync)):
        if window is not None:
            yield f"{name}.seconds", (window.seconds,)
            yield f"{name}.step_seconds", window.step_seconds
    for name, phases in (
        ("phases", rank.phases),
        ("phases_without_sync", rank.phases_without_sync),
    ):
        if phases is not None:
            for column, seconds in _columns(phases).items():
                yield f"{name}.{column}", seconds


def _columns(phases: Phases) -> dict[str, tuple[float, ...]]:
    return {field.name: getattr(phases, field.name) for field in fields(phases)}


def _are_whole(columns: dict[str, tuple[float, ...]]) -> bool:
    return _one_length(columns.values()) and sum(map(sum, columns.values())) > 0


def _one_length(columns: Iterable[tuple[float, ...]]) -> bool:
    lengths = {len(column) for column in columns}
    return len(lengths) <= 1 and 0 not in lengths

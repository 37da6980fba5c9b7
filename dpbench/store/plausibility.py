"""Finds values that no measurement can have, so that readers of results need not handle them.

Values of losses are not among them: a diverging loss may be anything.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sized
from dataclasses import fields
from itertools import chain, pairwise

from dpbench import units
from dpbench.records.collectives import (
    CollectiveRecord,
    CollectiveSpec,
    ExchangeTiming,
    OverlapTiming,
    RankCollectives,
)
from dpbench.records.trial import (
    GradientTrace,
    HostLoad,
    Phases,
    RankMeasurement,
    ReplicaPhases,
    Status,
    TrialRecord,
)
from dpbench.specs import (
    COMPARED,
    MOST_REPETITIONS,
    SETTINGS,
    SweepSpec,
    TrialSettings,
    TrialSpec,
)
from dpbench.specs.sweep import FIELDS
from dpbench.specs.traits import BACKENDS, IMPLEMENTATIONS, PROCESS_GROUP_BACKENDS
from dpbench.specs.workload import LR_RULES
from dpbench.units import DTYPE_BYTES

LONGEST_SECONDS = 1e9
"""Thirty years."""
MOST_FLOPS = 1e30
MOST_TRIALS = 10_000_000
"""Trials of a sweep, or replicas of all its rows: a plan of more would fill the reader's memory."""


def impossible_in_spec(spec: SweepSpec) -> Iterator[str]:
    """Values with which no sweep can have been started."""
    for name in spec.implementations:
        if name not in IMPLEMENTATIONS:
            yield f"no implementation is called {name!r}"
    for name in spec.backends:
        if name not in BACKENDS:
            yield f"no backend is called {name!r}"
    if not all(1 <= size <= len(spec.devices) for size in spec.group_sizes):
        yield f"group sizes {spec.group_sizes} on {units.counted(len(spec.devices), 'device')}"
    if spec.nodes and not (min(spec.nodes) > 0 and sum(spec.nodes) == len(spec.devices)):
        yield f"hosts with {spec.nodes} of {units.counted(len(spec.devices), 'device')}"
    for word in chain(*spec.exclude):
        if word.partition("=")[0] not in FIELDS:
            yield f"rows have no such field as in {word!r}, which is excluded"
    axes = (spec.implementations, spec.backends, spec.group_sizes, spec.batch_sizes)
    rows = math.prod(map(len, axes)) * max(len(spec.variants), 1)
    for count, noun in (
        (rows * spec.repetitions, "trials"),
        (rows * len(spec.devices), "replicas"),
    ):
        if count > MOST_TRIALS:
            yield f"{count:,} {noun} in all; expected at most {MOST_TRIALS:,}"
    if spec.repetitions > MOST_REPETITIONS:
        yield f"repetitions is {spec.repetitions}; expected at most {MOST_REPETITIONS}"
    for workload in spec.workloads:
        if workload.learning_rate_rule not in LR_RULES:
            yield f"no rule for learning rates is called {workload.learning_rate_rule!r}"
    named = {workload.architecture for workload in spec.workloads}
    for architecture in spec.values_of("architecture"):
        if architecture not in named:
            yield f"rows train {architecture!r}, which no workload is of"
    for name in ("time_limit_seconds", "precision", "budget_seconds", "target_loss"):
        value = getattr(spec, name)
        if value is not None and not 0 < value < math.inf:
            yield f"{name} is {value}; expected a number above 0"
    yield from _impossible_settings(spec)


def impossible_in_record(record: TrialRecord) -> Iterator[str]:
    """Values that no trial can have produced, so that readers need not handle them."""
    trial = record.trial
    if trial.implementation not in IMPLEMENTATIONS:
        yield f"no implementation is called {trial.implementation!r}"
    if not trial.group_size == len(trial.devices) > 0:
        yield f"group size {trial.group_size} on {units.counted(len(trial.devices), 'device')}"
    if trial.nodes and not (min(trial.nodes) > 0 and sum(trial.nodes) == trial.group_size):
        yield f"group size {trial.group_size} on hosts with {trial.nodes}"
    if record.host_environment_ids and len(record.host_environment_ids) != len(trial.nodes):
        yield f"environments of {len(record.host_environment_ids)} of {len(trial.nodes)} hosts"
    if trial.batch_size < 1:
        yield f"batch_size is {trial.batch_size}; expected at least 1"
    yield from _impossible_settings_of_trial(trial)
    if not 0 <= record.duration_seconds <= LONGEST_SECONDS:
        yield f"duration_seconds is {record.duration_seconds}"
    if record.flops_per_item is not None and not 0 < record.flops_per_item < MOST_FLOPS:
        yield f"flops_per_item is {record.flops_per_item}"
    if (load := record.host_load) is not None and not _is_possible_load(load):
        yield f"other processes kept {load.during} of {load.cores} cores busy"
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
        for window in (rank.timed, rank.without_sync):
            if window is not None and (window.page_faults or 0) < 0:
                yield f"rank {rank.rank} has {window.page_faults} page faults"
            if window is not None and len(window.losses) not in (0, len(window.step_seconds)):
                steps = units.counted(len(window.step_seconds), "step")
                yield f"rank {rank.rank} has losses of {len(window.losses)} of {steps}"
        for phases in (rank.phases, rank.phases_without_sync, rank.replica_phases):
            if phases is not None and not _are_whole(_columns(phases)):
                yield f"rank {rank.rank} has phases of no step, of no time, or of unequal steps"
        if rank.gradient_trace is not None and not _is_possible(rank.gradient_trace):
            yield f"rank {rank.rank} has a gradient trace that no steps can have left"
    norms = [rank.gradient_norms for rank in record.ranks if rank.gradient_norms is not None]
    if not _one_length(c for n in norms for c in (n.local_squared, n.global_squared)):
        yield "gradient norms of batches that lack others"
    if any(not 1 <= n.local_samples <= n.global_samples for n in norms):
        yield "gradient norms of impossible numbers of samples"


def _is_possible_load(load: HostLoad) -> bool:
    busy = (load.before, load.during, load.stolen)
    return load.cores > 0 and all(0 <= one < math.inf for one in busy)


def _impossible_settings(spec: TrialSettings) -> Iterator[str]:
    for name, setting in SETTINGS.items():
        if flaw := setting.flaw(name, spec.setting(name)):
            yield flaw
    for name in spec.compared:
        if name not in COMPARED:
            yield f"{name!r} is compared, and no setting that names of rows tell only there"


def _impossible_settings_of_trial(trial: TrialSpec) -> Iterator[str]:
    yield from _impossible_settings(trial)
    if trial.data_workers and not trial.prefetch:
        yield f"data_workers is {trial.data_workers} with prefetch {trial.prefetch}"
    try:
        _ = trial.learning_rate
    except (ValueError, ArithmeticError) as error:
        yield f"it has no learning rate: {error}"


def _is_possible(trace: GradientTrace) -> bool:
    """Whether all is there and in order: backward starts, gradients, backward ends, step ends."""
    ready, untraced = trace.ready_seconds, trace.untraced_step_seconds
    phases = (trace.backward_start_seconds, trace.backward_end_seconds, trace.step_seconds)
    gradients = (trace.parameters, trace.gradient_bytes, trace.gradient_dtypes)
    if not (_one_length((ready, untraced, *phases)) and _one_length((*gradients, *ready))):
        return False
    return (
        min(trace.buffer_bytes, *trace.gradient_bytes) >= 0
        and all(0 < seconds <= LONGEST_SECONDS for seconds in (*trace.step_seconds, *untraced))
        and all(
            0 <= start <= seconds <= end <= step
            for start, end, step, step_ready in zip(*phases, ready, strict=True)
            for seconds in step_ready
        )
    )


def _seconds(rank: RankMeasurement) -> Iterator[tuple[str, tuple[float, ...]]]:
    """All times of a rank by where they stand in its measurement."""
    yield "setup_seconds", (rank.setup_seconds,)
    if rank.comm_init_seconds is not None:
        yield "comm_init_seconds", (rank.comm_init_seconds,)
    for name, window in (("timed", rank.timed), ("without_sync", rank.without_sync)):
        if window is not None:
            yield f"{name}.seconds", (window.seconds,)
            yield f"{name}.step_seconds", window.step_seconds
            yield f"{name}.cpu_seconds", (window.cpu_seconds or 0.0,)
    for name, phases in (
        ("phases", rank.phases),
        ("phases_without_sync", rank.phases_without_sync),
        ("replica_phases", rank.replica_phases),
    ):
        if phases is not None:
            for column, seconds in _columns(phases).items():
                yield f"{name}.{column}", seconds


def _columns(phases: Phases | ReplicaPhases) -> dict[str, tuple[float, ...]]:
    return {field.name: getattr(phases, field.name) for field in fields(phases)}


def _are_whole(columns: dict[str, tuple[float, ...]]) -> bool:
    return _one_length(columns.values()) and sum(map(sum, columns.values())) > 0


def _one_length(columns: Iterable[Sized]) -> bool:
    lengths = {len(column) for column in columns}
    return len(lengths) <= 1 and 0 not in lengths


def impossible_in_collective_record(record: CollectiveRecord) -> Iterator[str]:
    """Values that no measurement of a collective can have produced."""
    spec = record.collective
    yield from _impossible_in_collective_spec(spec)
    if not 0 <= record.duration_seconds <= LONGEST_SECONDS:
        yield f"duration_seconds is {record.duration_seconds}"
    if record.status is not Status.COMPLETED:
        if record.ranks:
            yield f"it is {record.status.words}, and holds times"
    elif [rank.rank for rank in record.ranks] != list(range(spec.group_size)):
        yield f"it holds {len(record.ranks)} of {spec.group_size} ranks, or others"
    elif any(_sizes(rank) != _sizes_asked_for(spec) for rank in record.ranks):
        yield "a rank has times of other sizes than were asked for"
    elif not all(
        timing.largest_error is None or 0 <= timing.largest_error < math.inf
        for rank in record.ranks
        for timing in rank.timings
    ):
        yield "it holds an error that is no finite number of at least 0"
    elif not all(map(_is_one_measurement, zip(*map(_measurements, record.ranks), strict=True))):
        yield "it holds impossible seconds, or samples that some rank lacks"


def _impossible_in_collective_spec(spec: CollectiveSpec) -> Iterator[str]:
    if spec.backend not in PROCESS_GROUP_BACKENDS:
        yield f"no backend for collectives is called {spec.backend!r}"
    if spec.dtype not in DTYPE_BYTES:
        yield f"dtype is {spec.dtype!r}; expected one of {', '.join(DTYPE_BYTES)}"
    if not spec.group_size == len(spec.devices) > 0:
        yield f"group size {spec.group_size} on {units.counted(len(spec.devices), 'device')}"
    for name, least in (("samples", 1), ("threads_per_replica", 1), ("repetition", 0)):
        if getattr(spec, name) < least:
            yield f"{name} is {getattr(spec, name)}; expected at least {least}"
    for sizes in _sizes_asked_for(spec):
        if any(smaller >= larger for smaller, larger in pairwise((0, *sizes))):
            yield "its sizes do not rise from 1 on"


def _sizes_asked_for(spec: CollectiveSpec) -> tuple[tuple[int, ...], ...]:
    return (
        spec.sizes_bytes,
        spec.sizes_bytes,
        spec.overlap_sizes_bytes,
        spec.exchange_sizes_bytes,
    )


def _sizes(rank: RankCollectives) -> tuple[tuple[int, ...], ...]:
    measured = (rank.timings, rank.copies, rank.overlaps, rank.exchanges)
    return tuple(tuple(one.nbytes for one in several) for several in measured)


def _measurements(rank: RankCollectives) -> Iterator[tuple[int, tuple[tuple[float, ...], ...]]]:
    """Calls per sample and columns of seconds of everything that a rank measured."""
    for timing in (*rank.timings, *rank.copies):
        yield timing.calls_per_sample, (timing.seconds,)
    others: tuple[OverlapTiming | ExchangeTiming, ...] = (*rank.overlaps, *rank.exchanges)
    for one in others:
        columns = (getattr(one, field.name) for field in fields(one))
        yield 1, tuple(column for column in columns if isinstance(column, tuple))


def _is_one_measurement(
    ranks: tuple[tuple[int, tuple[tuple[float, ...], ...]], ...],
) -> bool:
    """Whether all ranks made as many calls and samples, none of them in no time."""
    columns = [column for _, columns in ranks for column in columns]
    return (
        min(calls for calls, _ in ranks) == max(calls for calls, _ in ranks) >= 1
        and _one_length(columns)
        and all(min(column) > 0 and sum(column) <= LONGEST_SECONDS for column in columns)
    )

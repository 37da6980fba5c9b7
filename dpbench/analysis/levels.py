"""The levels of detail of results, from configurations to steps, and the fields of their rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

from dpbench.analysis import metrics
from dpbench.analysis.communication.timings import MeasuredCollective, SizeCost
from dpbench.analysis.configuration import ConfigurationSummary
from dpbench.analysis.fields import (
    Field,
    Plain,
    ReadField,
    Value,
    flat,
    integer,
    number,
    read_row,
    text,
)
from dpbench.analysis.metric import Metric
from dpbench.analysis.throughput import mean_step_seconds
from dpbench.records.trial import Phases, RankMeasurement, TrialRecord, Window


def _column(metric: Metric, read: Callable[[Any], Value], **changes: Any) -> ReadField[Any]:
    return ReadField(
        **{name: getattr(metric, name) for name in Field.__dataclass_fields__} | changes, read=read
    )


def row_columns(
    declared: Sequence[Metric] = metrics.DECLARED,
) -> tuple[ReadField[ConfigurationSummary], ...]:
    """The fields of rows of configurations, in the order of their declarations."""
    return tuple(_column(one, one.row) for one in declared if one.row is not None)


def trial_fields(
    declared: Sequence[Metric] = metrics.DECLARED,
) -> tuple[ReadField[TrialRecord], ...]:
    """The fields of rows of trials, in the order of their declarations."""
    return tuple(
        _column(one, one.trial, required=one.required_in_trials, ends=False, header="")
        for one in declared
        if one.trial is not None and not one.relative
    )


COLUMNS = {column.key: column for column in row_columns() if column.header}
"""The columns that a table of configurations may have."""
CONFIGURATION_FIELDS = tuple(flat(row_columns()))
TRIAL_FIELDS = trial_fields()
_IDENTITY = [
    "trial_id",
    "implementation",
    "backend",
    "group_size",
    "batch_size",
    "repetition",
    "status",
]
TRIAL_IDENTITY = tuple(field for field in TRIAL_FIELDS if field.key in _IDENTITY)
"""Fields with which every level below the configuration begins."""


def configuration_row(row: ConfigurationSummary) -> dict[str, Plain]:
    """One summary as plain values; a key never changes its meaning: `images_per_second` keeps its
    name whatever the `item` is."""
    return read_row(CONFIGURATION_FIELDS, row)


WINDOWS = TIMED, WITHOUT_SYNC = ("timed", "without_sync")


def _mean_step(window: Window | None) -> float | None:
    return mean_step_seconds(window) if window and window.step_seconds else None


def _phase(phases: Phases | None, part: Callable[[Phases], Sequence[float]]) -> float | None:
    return fmean(part(phases)) if phases and part(phases) else None


RANK_FIELDS: tuple[ReadField[RankMeasurement], ...] = (
    integer("rank", "Number of the rank, from 0.", required=True),
    integer("pid", "Process that it ran in.", required=True),
    text("device", "Device that it computed on.", required=True),
    text("start_method", "How its process was started: forkserver, spawn or fork."),
    number("setup_seconds", "Time from the rank's start to its first warmup step.", required=True),
    number(
        "comm_init_seconds",
        "Time until the process group was made and its first collective had passed, from when all "
        "ranks had come; before warmup.",
    ),
    integer("warmup_steps", "Steps before the timed window."),
    integer("timed_steps", "Steps of the timed window.", lambda r: len(r.timed.step_seconds)),
    number("timed_seconds", "Length of the timed window.", lambda r: r.timed.seconds),
    integer("samples", "Samples consumed in the timed window.", lambda r: r.timed.samples),
    number(
        "cpu_seconds",
        "Processor time of the process in the timed window, all its threads together.",
        lambda r: r.timed.cpu_seconds,
    ),
    integer(
        "page_faults",
        "Minor page faults of the process in the timed window.",
        lambda r: r.timed.page_faults,
    ),
    number("step_seconds", "Mean timed step.", lambda r: _mean_step(r.timed)),
    number(
        "step_without_sync_seconds",
        "Mean step without gradient synchronization.",
        lambda r: _mean_step(r.without_sync),
    ),
    number(
        "data_seconds",
        "Mean time of an instrumented step until the batch is on the device.",
        lambda r: _phase(r.phases, lambda p: p.data_seconds),
    ),
    number(
        "forward_seconds",
        "Mean time of forward and loss in an instrumented step.",
        lambda r: _phase(r.phases, lambda p: p.forward_seconds),
    ),
    number(
        "backward_seconds",
        "Mean time of backward in an instrumented step, exposed communication included.",
        lambda r: _phase(r.phases, lambda p: p.backward_seconds),
    ),
    number(
        "backward_without_sync_seconds",
        "Mean time of backward in an instrumented step without gradient synchronization.",
        lambda r: _phase(r.phases_without_sync, lambda p: p.backward_seconds),
    ),
    number(
        "optimizer_seconds",
        "Mean time of the optimizer in an instrumented step.",
        lambda r: _phase(r.phases, lambda p: p.optimizer_seconds),
    ),
    integer("peak_host_memory_bytes", "Largest resident set of the process."),
    integer(
        "peak_device_memory_bytes",
        "Largest allocation on the device during warmup and timed window.",
    ),
    integer("peak_reserved_memory_bytes", "Largest device memory that torch's allocator held."),
    number("energy_joules", "Energy of the rank's devices over the timed window."),
    number("clock_hertz", "Clock of the device after the timed window."),
    integer("reduced_bytes_per_step", "Bytes that the rank hands to all-reduce in a step."),
    number("collectives_per_step", "Collectives that the rank takes part in during a step."),
    text("sample_checksum", "Hash of the samples consumed in the timed window."),
    text("initial_checksum", "Hash of the parameters before warmup."),
    text("final_checksum", "Hash of the parameters after the timed window."),
)

STEP_FIELDS: tuple[Field, ...] = (
    Field(key="rank", kind="integer", meaning="Number of the rank, from 0.", required=True),
    Field(
        key="window",
        kind="text",
        meaning="timed, or without_sync: the same number of steps without synchronization.",
        required=True,
        choices=WINDOWS,
    ),
    Field(
        key="step",
        kind="integer",
        meaning="Number of the step in its window, from 0.",
        required=True,
    ),
    Field(key="seconds", meaning="Length of the step on this rank.", required=True),
    Field(key="loss", meaning="Mean loss of the rank's samples of the step.", finite=False),
    Field(key="samples", kind="integer", meaning="Samples that the rank consumed in the step."),
)
"""Fields of steps, without readers: `tidy` makes millions of these rows, a window at once."""


def _ended(one: MeasuredCollective) -> tuple[str, str | None]:
    if not one.failures:
        return "completed", None
    status, reason = one.failures[0]
    return status.value, reason or None


COLLECTIVE_FIELDS: tuple[ReadField[MeasuredCollective], ...] = (
    text(
        "collective",
        "Operation that the ranks perform together.",
        lambda m: m.spec.collective,
        required=True,
    ),
    text("backend", "How the bytes travel.", lambda m: m.spec.backend, required=True),
    integer("group_size", "Ranks that take part.", lambda m: m.spec.group_size, required=True),
    integer("nodes", "Hosts that the ranks ran on; 0 if no repetition completed."),
    text("dtype", "Type of an element.", lambda m: m.spec.dtype, required=True),
    integer(
        "threads_per_replica",
        "Threads of each rank.",
        lambda m: m.spec.threads_per_replica,
        required=True,
    ),
    integer("repetitions", "Completed repetitions, each in fresh processes.", required=True),
)
SPEC_FIELDS: tuple[ReadField[MeasuredCollective], ...] = (
    *COLLECTIVE_FIELDS,
    text("status", "completed, or how the first failed repetition ended.", lambda m: _ended(m)[0]),
    text("reason", "Why it is not simply completed.", lambda m: _ended(m)[1]),
)
SIZE_COLUMNS: tuple[ReadField[SizeCost], ...] = (
    integer(
        "nbytes",
        "Size of the message in bytes, as nccl-tests counts it: of all_gather and reduce_scatter "
        "the whole, of which each rank holds its part.",
        header="Size (B)",
        style="grouped",
    ),
    integer("samples", "Timed samples behind it, all repetitions together."),
    number(
        "seconds",
        "Time of one call on the slowest rank: the median over samples, the geometric mean over "
        "repetitions.",
        ends=True,
        header="Time",
        style="time",
    ),
    number(
        "algorithm_bytes_per_second",
        "Size ÷ time (algbw); tables show 10⁹ bytes per second.",
        lambda c: c.algorithm_bandwidth,
        ends=True,
        header="algbw (GB/s)",
        style="gigabytes alone",
    ),
    number(
        "bus_bytes_per_second",
        "algbw × the factor that makes it the load of each link of a ring, as nccl-tests defines "
        "it (busbw); tables show 10⁹ bytes per second.",
        lambda c: c.bus_bandwidth,
        ends=True,
        header="busbw (GB/s)",
        style="gigabytes",
    ),
    number(
        "copy_bytes_per_second",
        "Bytes copied from one tensor to another by all ranks at once ÷ time.",
        lambda c: c.copy_bandwidth,
        ends=True,
    ),
    number(
        "share_of_copies",
        "algbw ÷ the bandwidth of copying as many bytes from one tensor to another by all ranks "
        "at once, a fraction; tables show percent.",
        lambda c: c.copy_share,
        ends=True,
        header="of copies (%)",
        style="percent alone",
    ),
    number(
        "largest_error",
        "Largest error of a result on values that have to be rounded, over all ranks, relative to "
        "exact arithmetic; 0 where values are only moved.",
        header="Error",
        style="error",
    ),
)
"""Fields of one message size; `report.collectives` has the table of them."""
SIZE_FIELDS = tuple(flat(SIZE_COLUMNS))


LEVELS: dict[str, tuple[Field, ...]] = {
    "configuration": CONFIGURATION_FIELDS,
    "trial": TRIAL_FIELDS,
    "rank": (*TRIAL_IDENTITY, *RANK_FIELDS),
    "step": (*TRIAL_IDENTITY, *STEP_FIELDS),
    "collective": (*SPEC_FIELDS, *SIZE_FIELDS),
}

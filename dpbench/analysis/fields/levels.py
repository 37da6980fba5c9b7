"""The levels of detail of results, and the fields of their rows, down to ranks and collectives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import fmean

from dpbench.analysis.communication.timings import MeasuredCollective, SizeCost
from dpbench.analysis.configuration import ConfigurationSummary
from dpbench.analysis.fields import identity, learning, measured
from dpbench.analysis.fields.field import (
    Field,
    Metric,
    Plain,
    ReadField,
    SweepField,
    flat,
    in_key_order,
    integer,
    number,
    of_configuration,
    of_trial,
    read_row,
    text,
)
from dpbench.analysis.throughput import mean_step_seconds
from dpbench.records.trial import Phases, RankMeasurement, Window

WINDOWS = TIMED, WITHOUT_SYNC = ("timed", "without_sync")


def _mean_step(window: Window | None) -> float | None:
    return mean_step_seconds(window) if window and window.step_seconds else None


def _phase(phases: Phases | None, part: Callable[[Phases], Sequence[float]]) -> float | None:
    return fmean(part(phases)) if phases and part(phases) else None


RANK_FIELDS: tuple[ReadField[RankMeasurement], ...] = (
    integer("rank", "Number of the rank, from 0.", required=True),
    integer("pid", "Process that it ran in.", required=True),
    text("device", "Device that it computed on.", required=True),
    text(
        "start_method",
        "How its process was started: forkserver, spawn or fork.",
    ),
    number(
        "setup_seconds",
        "Time from the rank's start to its first warmup step.",
        required=True,
    ),
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
    integer(
        "peak_host_memory_bytes",
        "Largest resident set of the process.",
    ),
    integer(
        "peak_device_memory_bytes",
        "Largest allocation on the device during warmup and timed window.",
    ),
    integer(
        "peak_reserved_memory_bytes",
        "Largest device memory that torch's allocator held.",
    ),
    number(
        "energy_joules",
        "Energy of the rank's devices over the timed window.",
    ),
    number("clock_hertz", "Clock of the device after the timed window."),
    integer(
        "reduced_bytes_per_step",
        "Bytes that the rank hands to all-reduce in a step.",
    ),
    number(
        "collectives_per_step",
        "Collectives that the rank takes part in during a step.",
    ),
    text(
        "sample_checksum",
        "Hash of the samples consumed in the timed window.",
    ),
    text("initial_checksum", "Hash of the parameters before warmup."),
    text(
        "final_checksum",
        "Hash of the parameters after the timed window.",
    ),
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
    Field(
        key="loss",
        meaning="Mean loss of the rank's samples of the step.",
        finite=False,
    ),
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
    integer(
        "repetitions",
        "Completed repetitions, each in fresh processes.",
        required=True,
    ),
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
        wrapped="Size\n(B)",
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
        wrapped="algbw\n(GB/s)",
        style="gigabytes alone",
    ),
    number(
        "bus_bytes_per_second",
        "algbw × the factor that makes it the load of each link of a ring, as nccl-tests defines "
        "it (busbw); tables show 10⁹ bytes per second.",
        lambda c: c.bus_bandwidth,
        ends=True,
        header="busbw (GB/s)",
        wrapped="busbw\n(GB/s)",
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
        wrapped="of copies\n(%)",
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


SWEEP_FIELDS: tuple[SweepField, ...] = (
    *identity.IDENTITY_FIELDS,
    *identity.WORKLOAD_FIELDS,
    *measured.SPEED_FIELDS,
    *learning.LEARNING_FIELDS,
    *measured.MACHINE_FIELDS,
    *measured.STEPS_FIELDS,
    *measured.USAGE_FIELDS,
    *measured.TRIAL_FIELDS,
    *identity.OUTCOME_FIELDS,
)
"""Fields in the order of a table's columns."""

METRICS: dict[str, Metric] = {one.key: one for one in SWEEP_FIELDS if isinstance(one, Metric)}
"""Metrics that `compare` and `check` can compare."""


_OF_ROWS = tuple(filter(None, map(of_configuration, SWEEP_FIELDS)))
COLUMNS: dict[str, ReadField[ConfigurationSummary]] = {
    field.key: field for field in _OF_ROWS if field.header
}
"""The columns that a table of configurations may have."""

# Programs read exported files by position too: a key never changes its place, new ones come last.
_CONFIGURATION_ORDER = """
implementation backend group_size batch_size global_batch_size images_per_second
images_per_second_low images_per_second_high speedup speedup_low speedup_high absolute_speedup
efficiency efficiency_low efficiency_high exposed_communication_seconds loss_delta_per_step
loss_delta_per_second final_loss peak_memory_bytes step_seconds_p50 step_seconds_p95 repetitions
timed_steps status reason verified item unit duration_seconds step_seconds_p99 outliers
slowest_outlier step_autocorrelation steady rank_skew slowest_rank reduced_bytes_per_step
collectives_per_step loss_slope_per_step loss_slope_per_step_low loss_slope_per_step_high
loss_slope_per_second loss_slope_per_second_low loss_slope_per_second_high target_loss
time_to_loss_seconds time_to_loss_seconds_low time_to_loss_seconds_high time_to_loss_samples
time_to_loss_censored loss_at_equal_samples loss_at_equal_seconds
flops_per_second mfu peak_reserved_memory_bytes joules_per_item joules_per_item_low
joules_per_item_high absolute_speedup_low absolute_speedup_high exposed_communication_seconds_low
exposed_communication_seconds_high loss_delta_per_step_low loss_delta_per_step_high
loss_delta_per_second_low loss_delta_per_second_high final_loss_low final_loss_high rank_skew_low
rank_skew_high loss_at_equal_samples_low loss_at_equal_samples_high loss_at_equal_seconds_low
loss_at_equal_seconds_high
flops_per_second_low flops_per_second_high mfu_low mfu_high duration_seconds_low
duration_seconds_high learning_rate learning_rate_rule images_per_second_sample_size
images_per_second_basis nodes optimizer accumulation_steps dtype compile channels_last
checkpoint_activations sync_every bucket_cap_mb comm_hook prefetch data_workers step files allocator
page_faults_per_step cpu_seconds_per_step overlap
final_loss_over_seeds final_loss_over_seeds_low final_loss_over_seeds_high
time_to_loss_over_seeds_seconds time_to_loss_over_seeds_seconds_low
time_to_loss_over_seeds_seconds_high warmup_steps threads_per_replica
"""
_TRIAL_ORDER = """
trial_id implementation backend group_size batch_size repetition status global_batch_size nodes
scaling architecture dataset learning_rate optimizer accumulation_steps dtype compile channels_last
checkpoint_activations sync_every bucket_cap_mb comm_hook prefetch data_workers step files seed
threads_per_replica environment_id started_utc reason verified max_relative_error duration_seconds
item elapsed_seconds timed_steps samples images_per_second exposed_communication_seconds
initial_loss final_loss loss_delta loss_delta_per_step loss_delta_per_second rank_skew slowest_rank
peak_memory_bytes peak_reserved_memory_bytes memory_imbalance flops_per_item
allocator page_faults_per_step cpu_seconds_per_step overlap warmup_steps
"""

CONFIGURATION_FIELDS = in_key_order(flat(_OF_ROWS), _CONFIGURATION_ORDER)
TRIAL_FIELDS = in_key_order(filter(None, map(of_trial, SWEEP_FIELDS)), _TRIAL_ORDER)
TRIAL_IDENTITY = TRIAL_FIELDS[: len(identity.IDENTITY_FIELDS) + 1]
"""The keys with which every level below the configuration begins, up to the status."""

LEVELS: dict[str, tuple[Field, ...]] = {
    "configuration": CONFIGURATION_FIELDS,
    "trial": TRIAL_FIELDS,
    "rank": (*TRIAL_IDENTITY, *RANK_FIELDS),
    "step": (*TRIAL_IDENTITY, *STEP_FIELDS),
    "collective": (*SPEC_FIELDS, *SIZE_FIELDS),
}


WORK_COLUMNS = tuple(filter(None, map(of_configuration, identity.WORK_FIELDS)))
"""Keys that rows have besides in a sweep of several works."""


def configuration_fields(
    rows: Iterable[ConfigurationSummary],
) -> tuple[ReadField[ConfigurationSummary], ...]:
    """The fields that all of these rows have."""
    several = any(row.work for row in rows)
    return (*CONFIGURATION_FIELDS, *WORK_COLUMNS) if several else CONFIGURATION_FIELDS


def keys_of(level: str, rows: Iterable[ConfigurationSummary] = ()) -> tuple[str, ...]:
    """The keys of a level; of configurations those that all these rows have."""
    fields = configuration_fields(rows) if level == "configuration" else LEVELS[level]
    return tuple(field.key for field in fields)


def configuration_row(row: ConfigurationSummary) -> dict[str, Plain]:
    """One summary as plain values; a key never changes its meaning: `images_per_second` keeps its
    name whatever the `item` is."""
    return read_row(configuration_fields([row]), row)

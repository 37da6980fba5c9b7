"""Every metric of a sweep, declared once each: key, meaning, unit and style, how it is read from a
trial, how repetitions are combined, and which direction is better.

The order of the declarations is the order of the columns. To add a metric, add one declaration;
rows, tables, exports, `compare` and `check` follow. `frames` has the fields of ranks, steps and
collectives.
"""

from __future__ import annotations

from operator import attrgetter

from dpbench.analysis import resources, throughput
from dpbench.analysis.configuration import ConfigurationSummary, effective_status
from dpbench.analysis.fields import Plain, Worded, flat, read_row
from dpbench.analysis.metric import (
    Metric,
    of_losses,
    of_spec,
    of_speed,
    percentile,
    row_columns,
    setting_field,
    stored,
    timed,
    trial_field,
    trial_fields,
)
from dpbench.specs import AXES, plain_label
from dpbench.specs.shares import host_counts


def _learning_rate(row: ConfigurationSummary) -> Worded:
    """The learning rate that ran; tables add its scaling rule."""
    trial = row.configuration
    if trial is None:
        return Worded(None, "")
    rule = trial.workload.learning_rate_rule
    words = "" if rule in (None, "none") else f"{trial.learning_rate:g} ({rule})"
    return Worded(trial.learning_rate, words)


DECLARED: tuple[Metric, ...] = (
    trial_field(
        "trial_id", "Hash of the trial's specification; joins levels.", lambda r: r.trial.trial_id
    ),
    Metric(
        key="implementation",
        kind="text",
        meaning="Implementation that trains the replicas; in tables, settings that are not at "
        "their default follow in parentheses, and the backend after a slash.",
        header="Implementation",
        shown="always",
        row=lambda row: Worded(row.implementation, row.implementation_label),
        trial=lambda record: record.trial.implementation,
    ),
    Metric(
        key="backend",
        kind="text",
        meaning="How gradients travel: gloo, nccl, shm, threads of one process, or none; "
        "any other name is from the source of the numbers.",
        header="Backend",
        row=lambda row: row.backend or None,
        trial=lambda record: record.trial.backend,
    ),
    Metric(
        key="group_size",
        kind="integer",
        meaning="Group size: number of replicas that train together; across hosts, tables add the "
        "replicas of each host in parentheses.",
        header="Size",
        shown="always",
        row=lambda row: Worded(
            row.group_size, f"{row.group_size} ({host_counts(row.nodes)})" if row.nodes else ""
        ),
        trial=lambda record: record.trial.group_size,
    ),
    Metric(
        key="batch_size",
        kind="integer",
        meaning="Samples of each replica in a micro-step; in strong scaling, of all replicas "
        "together.",
        header="Batch",
        shown="always",
        row=attrgetter("batch_size"),
        trial=lambda record: record.trial.batch_size,
    ),
    trial_field(
        "repetition", "Number of the repetition, from 0.", lambda r: r.trial.repetition, "integer"
    ),
    Metric(
        key="label",
        kind="text",
        meaning="Name of the configuration, as tables and messages write it.",
        row=attrgetter("label"),
        trial=lambda record: plain_label(record.trial),
    ),
    Metric(
        key="global_batch_size",
        kind="integer",
        meaning="Samples of all replicas together in a micro-step.",
        header="Global batch",
        row=attrgetter("global_batch_size"),
        trial=lambda record: record.trial.global_batch_size,
    ),
    Metric(
        key="learning_rate",
        meaning="Learning rate that the optimizer used; tables add the rule that scaled it in "
        "parentheses.",
        header="Learning rate",
        row=_learning_rate,
        trial=lambda record: record.trial.learning_rate,
    ),
    Metric(
        key="learning_rate_rule",
        kind="text",
        meaning="How the learning rate follows the samples in a step.",
        **of_spec(lambda trial: trial.workload.learning_rate_rule),
    ),
    *(setting_field(name, axis) for name, axis in AXES.items() if axis.meaning),
    Metric(
        key="nodes",
        kind="text",
        meaning="Replicas on each host, as in 2+1; missing if all are on one.",
        **of_spec(lambda trial: host_counts(trial.nodes) or None),
    ),
    trial_field("dataset", "Dataset that was used.", lambda r: r.trial.workload.dataset),
    trial_field("seed", "Seed of the workload.", lambda r: r.trial.workload.seed, "integer"),
    trial_field(
        "environment_id",
        "Name of the file in environments/ that describes the machine.",
        lambda r: r.environment_id,
    ),
    trial_field("started_utc", "Start of the trial, ISO 8601.", lambda r: r.started_utc),
    Metric(
        key="item",
        kind="text",
        meaning="What images_per_second counts: images, tokens or rows.",
        row=attrgetter("item"),
        trial=lambda record: record.item,
    ),
    Metric(
        key="images_per_second",
        meaning="Items that all replicas consumed in the timed window ÷ the slowest rank's wall "
        "time, from the opening barrier until its device has finished.",
        unit="items/s",
        ends=True,
        header="{Item}/s",
        style="rate",
        shown="always",
        row=attrgetter("throughput"),
        trial=timed(throughput.throughput),
        better="higher",
    ),
    Metric(
        key="duration_seconds",
        meaning="Wall time of the whole trial, launch included; in published rows, of a fixed "
        "amount of work.",
        unit="s",
        header="Time",
        style="duration",
        shown="if measured",
        row=attrgetter("duration"),
        trial=lambda record: record.duration_seconds,
    ),
    Metric(
        key="speedup",
        meaning="Throughput ÷ that of `single`, the plain module in one process, at the same batch "
        "per replica (weak scaling) or global batch (strong); in results without `single`, ÷ that "
        "of the same implementation at group size 1.",
        ends=True,
        header="Speedup",
        style="ratio",
        shown="always",
        row=attrgetter("speedup"),
    ),
    Metric(
        key="speedup_relative",
        meaning="Throughput ÷ that of the same implementation and backend at group size 1.",
        ends=True,
        header="Relative speedup",
        style="ratio",
        row=attrgetter("speedup_relative"),
    ),
    Metric(
        key="efficiency",
        meaning="Efficiency: speedup ÷ replicas, 100 % is linear scaling; it has the speedup's "
        "relative interval.",
        unit="of linear",
        ends=True,
        header="Eff.",
        style="percent",
        shown="always",
        row=attrgetter("efficiency"),
        trial=timed(throughput.throughput),
        better="higher",
        relative=True,
        is_speed=False,
    ),
    Metric(
        **stored("serial_fraction"),
        meaning="Karp–Flatt serial fraction that would explain a published speedup S, "
        "(1/S − 1/n) ÷ (1 − 1/n).",
        header="Serial",
        style="fraction",
        shown="if measured",
    ),
    Metric(
        **of_speed("seconds_per_million_items"),
        meaning="Wall time of a fixed job: seconds for a million items at this throughput.",
        unit="s",
        ends=True,
        header="Time for 1M",
        style="time",
        trial=timed(lambda record: 1e6 / throughput.throughput(record)),
        scale="log",
    ),
    Metric(
        **of_speed("exposed_communication_seconds"),
        meaning="Mean step time with gradient synchronization − without it, where each step takes "
        "as long as its slowest rank, from two windows of equal length in the same processes: "
        "seconds of communication that overlap does not hide, without waiting for stragglers.",
        unit="s",
        ends=True,
        header="Exposed comm",
        style="time",
        shown="always",
        trial=timed(throughput.exposed_communication_seconds),
        scale="linear",
    ),
    Metric(
        key="elapsed_seconds",
        meaning="Wall time of the timed window on the slowest rank.",
        unit="s",
        trial=timed(throughput.elapsed_seconds),
    ),
    Metric(
        key="initial_loss",
        meaning="Loss of the first timed step, the sample-weighted mean over ranks.",
        unit="loss",
        trial=of_losses(lambda values, _: values[0]),
    ),
    Metric(
        key="loss_delta",
        meaning="First timed loss − last timed loss.",
        trial=of_losses(lambda values, _: values[0] - values[-1]),
    ),
    Metric(
        **of_speed("loss_slope_per_second"),
        meaning="Loss per second: the Theil–Sen slope of the losses over the timed steps × steps "
        "per second.",
        unit="per s",
        ends=True,
        header="Loss/s",
        style="significant",
        shown="always",
    ),
    Metric(
        **stored("loss_delta_per_step"),
        meaning="(First timed loss − last timed loss) ÷ timed steps: loss per step, from two noisy "
        "mini-batches.",
        unit="per step",
        header="Loss delta/step",
        style="significant",
        trial=of_losses(lambda values, _: (values[0] - values[-1]) / len(values)),
        scale="loss",
    ),
    Metric(
        **stored("loss_delta_per_second"),
        meaning="(First timed loss − last timed loss) ÷ seconds of the timed window, from two "
        "noisy mini-batches; without an interval, as repetitions share these batches.",
        unit="per s",
        header="Loss delta/s",
        style="significant",
        trial=of_losses(lambda values, seconds: (values[0] - values[-1]) / seconds),
        scale="loss",
    ),
    Metric(
        **stored("final_loss"),
        meaning="Loss of the last timed step, the sample-weighted mean over ranks.",
        unit="loss",
        header="Final loss",
        style="significant",
        shown="always",
        trial=of_losses(lambda values, _: values[-1]),
        scale="loss",
    ),
    Metric(
        key="flops_per_item",
        meaning="Floating-point operations of forward and backward for one item.",
        trial=lambda record: record.flops_per_item,
    ),
    Metric(
        **of_speed("mfu"),
        meaning="Model FLOPs utilization: floating-point operations per second ÷ the devices' peak "
        "for the trial's number format; empty for devices not in the built-in table.",
        header="MFU",
        style="percent",
        shown="if measured",
    ),
    Metric(
        **stored("peak_memory_bytes"),
        kind="integer",
        meaning="Largest memory over ranks and repetitions: allocated on the GPU from warm-up to "
        "the end of the first timed segment, else resident on the host (whole process).",
        unit="B",
        header="Memory",
        style="memory",
        shown="always",
        trial=lambda record: resources.peak_memory([record]),
        scale="largest",
        better="lower",
        is_speed=False,
    ),
    Metric(
        key="memory_imbalance",
        meaning="Largest ÷ mean peak memory over ranks; missing for a single rank.",
        trial=lambda record: resources.memory_imbalance([record]),
    ),
    percentile(50, "Median time of a timed step, over all steps of all repetitions."),
    percentile(95, "Time that 95 % of the timed steps did not exceed."),
    Metric(
        **stored("rank_skew"),
        meaning="(Slowest − fastest) ÷ median rank's mean step without synchronization, as a "
        "fraction; if that was not timed, with synchronization, which understates the skew.",
        unit="of the median rank",
        header="Rank skew",
        style="percent",
        trial=timed(throughput.rank_skew),
        scale="linear",
    ),
    Metric(
        **stored("reduced_bytes_per_step"),
        kind="integer",
        meaning="Bytes of gradients (or parameters) that a rank hands to all-reduce in a step.",
        unit="B",
        header="Reduced/step",
        style="traffic",
        trial=lambda record: resources.reduced_bytes_per_step([record]),
        scale="largest",
    ),
    Metric(
        key="setup_seconds",
        meaning="Time from the start of the slowest rank to its first warmup step.",
        unit="s",
        trial=lambda record: max((rank.setup_seconds for rank in record.ranks), default=None),
        better="lower",
    ),
    Metric(
        key="samples",
        kind="integer",
        meaning="Samples that all ranks consumed in the timed window.",
        trial=timed(lambda record: sum(rank.timed.samples for rank in record.ranks)),
    ),
    Metric(
        key="repetitions",
        kind="integer",
        meaning="Completed repetitions, each in fresh processes.",
        header="Repetitions",
        row=attrgetter("repetitions"),
    ),
    Metric(
        key="timed_steps",
        kind="integer",
        meaning="Steps of the timed window of each repetition.",
        header="Timed steps",
        row=attrgetter("timed_steps"),
        trial=timed(lambda r: min(len(rank.timed.step_seconds) for rank in r.ranks)),
    ),
    Metric(
        key="verified",
        kind="boolean",
        meaning="Whether gradients were compared with those of one process in float64, or float32 "
        "above 67 million parameters, and agreed; missing if not compared.",
        header="Verified",
        style="check",
        row=attrgetter("verified"),
        trial=lambda r: None if r.verification is None else r.verification.passed,
    ),
    Metric(
        key="max_relative_error",
        meaning="Largest relative error of a gradient against one process.",
        trial=lambda r: None if r.verification is None else r.verification.max_relative_error,
    ),
    Metric(
        key="status",
        kind="text",
        meaning="How the trials ended, and why if they did not all complete; a row without a "
        "completed trial has no speed.",
        header="Status",
        shown="always",
        row=lambda row: Worded(row.status.value, row.status.words),
        trial=lambda record: effective_status(record).value,
    ),
    Metric(
        key="reason",
        kind="text",
        meaning="Why a trial did not complete.",
        row=attrgetter("reason"),
        trial=lambda record: record.reason,
    ),
)
"""Metrics in the order of a table's columns."""

METRICS: dict[str, Metric] = {one.key: one for one in DECLARED if one.better}
"""Metrics that `compare` and `check` can compare."""
SUMMARIZED = tuple(one for one in DECLARED if one.scale and not one.of_losses)
"""Metrics that `summarize` averages over repetitions."""

COLUMNS = {column.key: column for column in row_columns(DECLARED) if column.header}
"""The columns that a table of configurations may have."""
CONFIGURATION_FIELDS = tuple(flat(row_columns(DECLARED)))
TRIAL_FIELDS = trial_fields(DECLARED)


def configuration_row(row: ConfigurationSummary) -> dict[str, Plain]:
    """One summary as plain values; a key never changes its meaning: `images_per_second` keeps its
    name whatever the `item` is."""
    return read_row(CONFIGURATION_FIELDS, row)

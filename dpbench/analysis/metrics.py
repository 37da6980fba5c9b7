"""Every metric of a sweep, declared once: key, meaning, how it is read, unit, how tables show it,
and which direction is better.

The order of the declarations is the order of the columns. To add a metric, add one declaration;
rows, tables and exports follow, and if one direction is better, `compare` and `check`. `frames` has
what only trials, ranks and steps have, `collectives` the metrics of collectives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter, methodcaller
from statistics import fmean
from typing import TYPE_CHECKING, Any, get_type_hints

import numpy as np

from dpbench.analysis import resources, throughput
from dpbench.analysis.estimate import Estimate, geometric_mean, mean, single_value
from dpbench.analysis.losses import SLOPE_BLOCKS, finite_losses, loss_slope_per_second
from dpbench.analysis.metric import Metric, value_type_of
from dpbench.analysis.scaling import serial_fraction
from dpbench.records.trial import Status, TrialRecord
from dpbench.specs import AXES, Configuration, WorkloadSpec, plain_label
from dpbench.specs.nodes import node_counts
from dpbench.specs.traits import INDEPENDENT

if TYPE_CHECKING:
    from dpbench.analysis.rows import Row


def if_timed(read: Callable[[TrialRecord], Any]) -> Callable[[TrialRecord], Any]:
    """The reading, or None unless the trial has a speed."""
    return lambda record: read(record) if throughput.is_measured(record) else None


def of_losses(
    measure: Callable[[Sequence[float], float], float],
) -> Callable[[TrialRecord], float | None]:
    """Reads the timed steps' losses and seconds; None unless all losses are finite."""

    def read(record: TrialRecord) -> float | None:
        losses = finite_losses(record)
        return measure(losses, throughput.elapsed_seconds(record)) if losses else None

    return if_timed(read)


def mean_of_a_seed(values: Sequence[float], unit: str) -> Estimate:
    """The mean of losses, which has no interval, as repetitions share a seed and its batches."""
    return single_value(fmean(values), unit)


def step_percentile(percent: int) -> Callable[[TrialRecord], float | None]:
    """Reads the seconds that so many percent of the timed steps did not exceed."""
    return if_timed(
        lambda record: float(np.percentile(throughput.slowest_of_each_step(record), percent))
    )


def series_words(row: Row) -> str:
    """Writes the implementation with its backend, and marks copies that do not communicate and
    rows that ran under load."""
    copies = "*" if row.implementation == INDEPENDENT else ""
    return f"{row.series}{copies}{UNDER_LOAD if row.is_under_load else ''}"


def with_remark(number: str, remark: str | None) -> str:
    """Writes a number with what belongs to it, if anything does: "0.02 (linear)", "3 (2+1)"."""
    return number if remark in (None, "", "none") else f"{number} ({remark})"


UNDER_LOAD = "†"
"""Marks rows that ran under load; `report.notes` explains it below the table."""
SETTING_TYPES = get_type_hints(WorkloadSpec) | get_type_hints(Configuration)
"""Annotations of the settings of a configuration."""
METRICS: tuple[Metric, ...] = (
    Metric(
        key="implementation",
        value_type="text",
        meaning="Implementation that trains the replicas; in tables, settings that are not at "
        "their default follow in parentheses, and the backend after a slash.",
        of_row=attrgetter("implementation"),
        of_trial=attrgetter("configuration.implementation"),
        header="Implementation",
        words=series_words,
        by_default=True,
    ),
    Metric(
        key="backend",
        value_type="text",
        meaning="How gradients travel: gloo, nccl, shm, threads of one process, or none; "
        "any other name is from the source of the numbers.",
        of_row=lambda row: row.backend or None,
        of_trial=attrgetter("configuration.backend"),
        header="Backend",
    ),
    Metric(
        key="group_size",
        value_type="integer",
        meaning="Group size: number of replicas that train together; across nodes, tables add the "
        "replicas of each node in parentheses.",
        of_row=attrgetter("group_size"),
        of_trial=attrgetter("configuration.group_size"),
        header="Size",
        words=lambda row: with_remark(str(row.group_size), node_counts(row.replicas_by_node)),
        by_default=True,
    ),
    Metric(
        key="batch_size",
        value_type="integer",
        meaning="Samples of each replica in a micro-step; in strong scaling, of all replicas "
        "together.",
        of_row=attrgetter("batch_size"),
        of_trial=attrgetter("configuration.batch_size"),
        header="Batch",
        by_default=True,
    ),
    Metric(
        key="label",
        value_type="text",
        meaning="Name of the configuration, as tables and messages write it.",
        of_row=attrgetter("label"),
        of_trial=lambda record: plain_label(record.configuration),
    ),
    Metric(
        key="global_batch_size",
        of_configuration=lambda configuration: configuration.global_batch_size or None,
        value_type="integer",
        meaning="Samples of all replicas together in a micro-step.",
        header="Global batch",
    ),
    Metric(
        key="lr",
        of_configuration=lambda used: used.setting("lr") and used.scaled_lr,
        meaning="Learning rate that the optimizer used; tables add the rule that scaled it in "
        "parentheses.",
        header="Learning rate",
        words=lambda row: with_remark(f"{row['lr']:g}", row["lr_scaling"]),
    ),
    Metric(
        key="lr_scaling",
        of_configuration=methodcaller("setting", "lr_scaling"),
        value_type="text",
        meaning="How the learning rate follows the samples in a step.",
    ),
    *(
        Metric(
            key=name,
            of_configuration=methodcaller("setting", name),
            value_type=value_type_of(SETTING_TYPES[name]) or "text",
            meaning=axis.meaning,
            header=name.removesuffix("_mb").replace("_", " ").capitalize(),
        )
        for name, axis in AXES.items()
        if axis.meaning
    ),
    Metric(
        key="nodes",
        of_configuration=lambda configuration: node_counts(configuration.replicas_by_node) or None,
        value_type="text",
        meaning="Replicas on each node, as in 2+1; missing if all are on one.",
    ),
    Metric(
        key="item",
        value_type="text",
        meaning="What images_per_second counts: images, tokens or rows.",
        of_row=attrgetter("item"),
        of_trial=attrgetter("facts.item"),
    ),
    Metric(
        key="images_per_second",
        combine=geometric_mean,
        of_trial=if_timed(throughput.items_per_second),
        meaning="Items that all replicas consumed in the timed window ÷ the slowest rank's wall "
        "time, from the opening barrier until its device has finished.",
        unit="items/s",
        has_interval=True,
        header="Items/s",
        style="rate",
        by_default=True,
        better="higher",
    ),
    Metric(
        key="duration_seconds",
        meaning="Wall time of the whole trial, launch included; in published rows, of a fixed "
        "amount of work.",
        of_trial=attrgetter("duration_seconds"),
        of_row=lambda row: row.stated.get("duration_seconds"),
        header="Time",
        style="time",
        by_default=True,
    ),
    Metric(
        key="speedup",
        meaning="Throughput ÷ that of `single`, the plain module in one process, at the same batch "
        "per replica (weak scaling) or global batch (strong); in results without `single`, ÷ that "
        "of the same implementation at group size 1.",
        of_row=lambda row: row.speedup_over(row.reference),
        has_interval=True,
        header="Speedup",
        style="ratio",
        by_default=True,
    ),
    Metric(
        key="speedup_relative",
        meaning="Throughput ÷ that of the same implementation and backend at group size 1.",
        of_row=lambda row: row.speedup_over(row.one_replica),
        has_interval=True,
        header="Relative speedup",
        style="ratio",
    ),
    Metric(
        key="efficiency",
        meaning="Efficiency: speedup ÷ replicas, 100 % is linear scaling; it has the speedup's "
        "relative interval.",
        of_row=lambda row: row.speedup and row.speedup.scaled(1 / row.group_size, unit="of linear"),
        has_interval=True,
        interval_of="speedup",
        header="Eff.",
        style="percent",
        by_default=True,
    ),
    Metric(
        key="serial_fraction",
        meaning="Karp–Flatt serial fraction that would explain a published speedup S, "
        "(1/S − 1/n) ÷ (1 − 1/n).",
        of_row=lambda row: (
            serial_fraction(row.speedup.value, row.group_size)
            if row.speedup and row.group_size > 1 and not row.configuration
            else None
        ),
        header="Serial",
        style="fraction",
        by_default=True,
    ),
    Metric(
        key="exposed_communication_seconds",
        follows_throughput=True,
        meaning="Communication that the backward pass does not hide: step time with gradient "
        "synchronization − without it, in the same processes, without waiting for stragglers; "
        "in rows, the share of the step that `explain` shows × the step.",
        of_trial=if_timed(throughput.exposed_communication_seconds),
        of_row=lambda row: throughput.exposed_communication(row.records),
        has_interval=True,
        header="Exposed comm",
        style="time",
        by_default=True,
    ),
    Metric(
        key="loss_slope_per_second",
        follows_throughput=True,
        meaning="How much the training loss falls per second: the Theil–Sen slope over the timed "
        "steps × steps per second.",
        of_row=lambda row: loss_slope_per_second(row.records, row.throughput),
        matters=lambda rows: any(
            not slope.ends[0] <= 0 <= slope.ends[1]
            for row in rows
            if (slope := row["loss_slope_per_second"])
        ),
        why_bare=f"too few timed steps for an interval (below {SLOPE_BLOCKS[-1][0]})",
        has_interval=True,
        header="Loss/s",
        style="significant",
        by_default=True,
    ),
    Metric(
        key="loss_delta_per_step",
        combine=mean_of_a_seed,
        of_trial=of_losses(lambda values, _: (values[0] - values[-1]) / len(values)),
        meaning="(First timed loss − last timed loss) ÷ timed steps: loss per step, from two noisy "
        "mini-batches.",
        unit="per step",
        header="Loss delta/step",
        style="significant",
    ),
    Metric(
        key="loss_delta_per_second",
        combine=mean_of_a_seed,
        of_trial=of_losses(lambda values, seconds: (values[0] - values[-1]) / seconds),
        meaning="(First timed loss − last timed loss) ÷ seconds of the timed window, from two "
        "noisy mini-batches; without an interval, as repetitions share these batches.",
        unit="per s",
        header="Loss delta/s",
        style="significant",
    ),
    Metric(
        key="final_loss",
        combine=mean_of_a_seed,
        of_trial=of_losses(lambda values, _: values[-1]),
        meaning="Loss of the last timed step, the sample-weighted mean over ranks; without an "
        "interval, as repetitions share a seed.",
        unit="loss",
        header="Final loss",
        style="significant",
    ),
    Metric(
        key="mfu",
        follows_throughput=True,
        meaning="Model FLOPs utilization: floating-point operations per second ÷ the devices' peak "
        "for the trial's number format; empty for devices not in the built-in table.",
        of_row=lambda row: (
            row.peak_items_per_second
            and row.throughput
            and row.throughput.scaled(1 / row.peak_items_per_second, unit="of peak")
        ),
        header="MFU",
        style="percent",
        by_default=True,
    ),
    Metric(
        key="peak_memory_bytes",
        combine=lambda peaks, unit: round(geometric_mean(peaks, unit).value),
        of_trial=resources.peak_memory,
        value_type="integer",
        meaning="Largest memory over ranks, the geometric mean over repetitions: allocated on the "
        "GPU from warm-up to the end of the first timed segment, else resident on the host (whole "
        "process).",
        unit="B",
        header="Memory",
        style="memory",
        by_default=True,
        better="lower",
        is_speed=False,
    ),
    *(
        Metric(
            key=f"step_seconds_p{percent}",
            combine=geometric_mean,
            of_trial=step_percentile(percent),
            meaning=meaning,
            unit="s",
            has_interval=True,
            header=f"Step p{percent}",
            style="time",
            better="lower",
        )
        for percent, meaning in (
            (50, "Median time of a timed step, the geometric mean over repetitions."),
            (95, "Time that 95 % of a repetition's timed steps did not exceed, as that of p50."),
        )
    ),
    Metric(
        key="rank_skew",
        combine=mean,
        of_trial=if_timed(throughput.rank_skew),
        meaning="(Slowest − fastest) ÷ median rank's mean step without synchronization, as a "
        "fraction; if that was not timed, with synchronization, which understates the skew.",
        unit="of the median rank",
        has_interval=True,
        header="Rank skew",
        style="percent",
    ),
    Metric(
        key="reduced_bytes_per_step",
        combine=lambda values, _: max(values),
        of_trial=lambda record: max(
            (n for rank in record.ranks if (n := rank.reduced_bytes_per_step) is not None),
            default=None,
        ),
        value_type="integer",
        meaning="Bytes of gradients (or parameters) that a rank hands to all-reduce in a step.",
        unit="B",
        header="Reduced/step",
        style="memory",
    ),
    Metric(
        key="setup_seconds",
        meaning="Time from the start of the slowest rank to its first warmup step.",
        of_trial=lambda record: max((rank.setup_seconds for rank in record.ranks), default=None),
        unit="s",
        style="time",
        better="lower",
    ),
    Metric(
        key="repetitions",
        value_type="integer",
        meaning="Completed repetitions, each in fresh processes.",
        of_row=attrgetter("repetitions"),
        header="Repetitions",
    ),
    Metric(
        key="timed_steps",
        combine=lambda values, _: min(values),
        of_trial=if_timed(lambda r: min(len(rank.timed.step_seconds) for rank in r.ranks)),
        value_type="integer",
        meaning="Steps of the timed window of each repetition.",
        header="Timed steps",
    ),
    Metric(
        key="verified",
        value_type="boolean",
        meaning="Whether gradients were compared with those of one process in float64 (float32 "
        "if there are over 67 million parameters, or the model casts to it), and agreed; missing "
        "if not compared.",
        of_row=attrgetter("verified"),
        of_trial=lambda r: one.passed if (one := r.facts.verification) else None,
        header="Verified",
    ),
    Metric(
        key="status",
        value_type="text",
        meaning="How the trials ended, and why if they did not all complete; a row without a "
        "completed trial has no speed.",
        of_row=attrgetter("status.value"),
        of_trial=attrgetter("status.value"),
        header="Status",
        words=attrgetter("status.words"),
        matters=lambda rows: any(row.status is not Status.COMPLETED or row.reason for row in rows),
        by_default=True,
    ),
    Metric(
        key="reason",
        value_type="text",
        meaning="Why a trial did not complete.",
        of_row=attrgetter("reason"),
        of_trial=attrgetter("reason"),
    ),
)
"""Metrics in the order of a table's columns."""

ROW_METRICS = {
    metric.key: metric
    for metric in METRICS
    if metric.of_row or metric.of_configuration or metric.combine
}
"""Metrics of rows; `row[key]` has them."""
COMPARED_METRICS = {metric.key: metric for metric in METRICS if metric.better}
"""Metrics that `compare` and `check` can compare."""
TABLE_METRICS = {key: metric for key, metric in ROW_METRICS.items() if metric.header}
"""The columns that a table of configurations may have."""

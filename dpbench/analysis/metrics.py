"""What a metric is, and every metric of a sweep, declared once each: key, meaning, unit and style,
how it is read from a trial, how repetitions are combined, and which direction is better.

The order of the declarations is the order of the columns. To add a metric, add one declaration;
rows, tables, exports, `compare` and `check` follow. `frames` has those of ranks, steps and
collectives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter, methodcaller
from statistics import fmean
from typing import Any, Literal

import numpy as np

from dpbench.analysis import resources, throughput
from dpbench.analysis.estimate import Estimate, geometric_mean, mean, single_value
from dpbench.analysis.losses import finite_losses
from dpbench.records.trial import Status, TrialRecord
from dpbench.specs import AXES, Configuration, plain_label
from dpbench.specs.nodes import node_counts

PlainValue = str | int | float | bool | None
Value = PlainValue | Estimate
ValueKind = Literal["text", "integer", "number", "boolean"]
Style = Literal[
    "plain",
    "rate",
    "ratio",
    "percent",
    "share",
    "fraction",
    "time",
    "duration",
    "significant",
    "memory",
    "gigabytes",
    "gigabytes alone",
    "grouped",
    "error",
]
"""Style in which a value is printed; `report.formatting` has the writer of each."""
Scale = Literal["", "linear", "log", "loss", "largest", "smallest"]
"""How the values of repetitions become the value of a row: the arithmetic or the geometric mean
with a t interval; for losses, which repetitions of one seed share, without an interval; the largest
or smallest value; "" where `rows` computes it, or rows do not have it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """One key of rows, of trials, or of both, and the table column that shows it."""

    key: str
    kind: ValueKind = "number"
    meaning: str = ""
    """Meaning in one sentence."""
    unit: str = ""
    """Unit; "items" stands for the architecture's item: images, tokens."""
    has_interval: bool = False
    """True for estimates whose interval is in `key`_low and `key`_high of a frame."""
    header: str = ""
    """Column header; empty if no table has it; "{Item}" is replaced by the architecture's item."""
    style: Style = "plain"
    shown: bool = False
    """Whether a table has the column without --columns, if a row has a value."""
    trial: Callable[[TrialRecord], PlainValue] | None = None
    """Reads it from one trial; None if trials do not have it."""
    setting: Callable[[Configuration], PlainValue] | None = None
    """Reads it from the configuration of a trial or of a row, unless the row is a published one."""
    row: Callable[[Any], Value] | None = None
    """Reads it from a row, where that is not its value under `key`."""
    in_rows: bool = True
    scale: Scale = ""
    better: Literal["", "higher", "lower"] = ""
    """Which direction is better; "" if `compare` and `check` do not compare it."""
    is_speed: bool = True
    """Whether better means faster."""
    follows_throughput: bool = False
    """True for a multiple of the throughput: too noisy to print where that is."""

    def of_trial(self, record: TrialRecord) -> PlainValue:
        """Read its value in one trial; None if that does not have it."""
        if self.setting is not None:
            return self.setting(record.trial)
        return None if self.trial is None else self.trial(record)

    def of_row(self, row: Any) -> Value:
        """Read its value in a row; None if that does not have it."""
        if self.row is not None:
            return self.row(row)
        if self.setting is not None and row.configuration is not None:
            return self.setting(row.configuration)
        value: Value = row[self.key]
        return value

    def average(self, values: Sequence[float], unit: str) -> Estimate:
        """The mean over runs; on logarithms for positive values that are compared by ratio."""
        if self.scale == "loss":
            return single_value(fmean(values), unit)
        if self.scale == "linear" or min(values) <= 0:
            return mean(values, unit=unit)
        return geometric_mean(values, unit=unit)

    def combined(self, usable: Sequence[TrialRecord]) -> Value:
        """Combine the usable repetitions of a configuration, by `scale`, to the value of its row;
        None if none has it."""
        values: list[Any] = [value for r in usable if (value := self.of_trial(r)) is not None]
        if not values:
            return None
        if self.scale in ("largest", "smallest"):
            end: PlainValue = max(values) if self.scale == "largest" else min(values)
            return end
        return self.average(values, self.unit.replace("items", usable[0].item))


def timed(read: Callable[[TrialRecord], Any]) -> Callable[[TrialRecord], Any]:
    """The reading, or None unless the trial completed and measured a window."""

    def read_timed(record: TrialRecord) -> Any:
        usable = record.status is Status.COMPLETED and throughput.is_measured(record)
        return read(record) if usable else None

    return read_timed


def of_losses(
    measure: Callable[[Sequence[float], float], float],
) -> Callable[[TrialRecord], float | None]:
    """Reads the timed steps' losses and seconds; None unless all losses are finite."""

    def read(record: TrialRecord) -> float | None:
        found = finite_losses(record)
        return measure(found, throughput.elapsed_seconds(record)) if found else None

    return timed(read)


def trial_metric(
    key: str,
    meaning: str,
    read: Callable[[TrialRecord], PlainValue],
    *,
    kind: ValueKind = "number",
    unit: str = "",
) -> Metric:
    """A metric that trials have, and no row."""
    return Metric(key=key, kind=kind, meaning=meaning, unit=unit, trial=read, in_rows=False)


def percentile(percent: int, *records: TrialRecord) -> float:
    """Seconds that so many percent of the timed steps of the records did not exceed."""
    return float(np.percentile(np.concatenate([*map(throughput.step_seconds, records)]), percent))


METRICS: tuple[Metric, ...] = (
    trial_metric(
        "trial_id",
        "Hash of the trial's specification; joins levels.",
        lambda record: record.trial.trial_id,
        kind="text",
    ),
    Metric(
        key="implementation",
        kind="text",
        meaning="Implementation that trains the replicas; in tables, settings that are not at "
        "their default follow in parentheses, and the backend after a slash.",
        header="Implementation",
        shown=True,
        row=attrgetter("implementation"),
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
        meaning="Group size: number of replicas that train together; across nodes, tables add the "
        "replicas of each node in parentheses.",
        header="Size",
        shown=True,
        row=attrgetter("group_size"),
        trial=lambda record: record.trial.group_size,
    ),
    Metric(
        key="batch_size",
        kind="integer",
        meaning="Samples of each replica in a micro-step; in strong scaling, of all replicas "
        "together.",
        header="Batch",
        shown=True,
        row=attrgetter("batch_size"),
        trial=lambda record: record.trial.batch_size or None,
    ),
    trial_metric(
        "repetition",
        "Number of the repetition, from 0.",
        lambda record: record.trial.repetition,
        kind="integer",
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
        setting=lambda one: one.global_batch_size or None,
    ),
    Metric(
        key="learning_rate",
        meaning="Learning rate that the optimizer used; tables add the rule that scaled it in "
        "parentheses.",
        header="Learning rate",
        setting=attrgetter("learning_rate"),
    ),
    Metric(
        key="learning_rate_rule",
        kind="text",
        meaning="How the learning rate follows the samples in a step.",
        setting=lambda one: one.workload.learning_rate_rule,
    ),
    *(
        Metric(
            key=name,
            kind=axis.kind,
            meaning=axis.meaning,
            header=name.removesuffix("_mb").replace("_", " ").capitalize(),
            setting=methodcaller("setting", name),
        )
        for name, axis in AXES.items()
        if axis.meaning
    ),
    Metric(
        key="nodes",
        kind="text",
        meaning="Replicas on each node, as in 2+1; missing if all are on one.",
        setting=lambda one: node_counts(one.replicas_by_node) or None,
    ),
    trial_metric(
        "dataset", "Dataset that was used.", lambda r: r.trial.workload.dataset, kind="text"
    ),
    trial_metric("seed", "Seed of the workload.", lambda r: r.trial.workload.seed, kind="integer"),
    trial_metric(
        "environment_id",
        "Name of the file in environments/ that describes the machine.",
        lambda record: record.environment_ids[0],
        kind="text",
    ),
    trial_metric(
        "started_utc", "Start of the trial, ISO 8601.", attrgetter("started_utc"), kind="text"
    ),
    Metric(
        key="item",
        kind="text",
        meaning="What images_per_second counts: images, tokens or rows.",
        row=attrgetter("item"),
        trial=attrgetter("item"),
    ),
    Metric(
        key="images_per_second",
        meaning="Items that all replicas consumed in the timed window ÷ the slowest rank's wall "
        "time, from the opening barrier until its device has finished.",
        unit="items/s",
        has_interval=True,
        header="{Item}/s",
        style="rate",
        shown=True,
        trial=timed(throughput.items_per_second),
        scale="log",
        better="higher",
    ),
    Metric(
        key="duration_seconds",
        meaning="Wall time of the whole trial, launch included; in published rows, of a fixed "
        "amount of work.",
        unit="s",
        header="Time",
        style="duration",
        shown=True,
        trial=attrgetter("duration_seconds"),
    ),
    Metric(
        key="speedup",
        meaning="Throughput ÷ that of `single`, the plain module in one process, at the same batch "
        "per replica (weak scaling) or global batch (strong); in results without `single`, ÷ that "
        "of the same implementation at group size 1.",
        has_interval=True,
        header="Speedup",
        style="ratio",
        shown=True,
    ),
    Metric(
        key="speedup_relative",
        meaning="Throughput ÷ that of the same implementation and backend at group size 1.",
        has_interval=True,
        header="Relative speedup",
        style="ratio",
    ),
    Metric(
        key="efficiency",
        meaning="Efficiency: speedup ÷ replicas, 100 % is linear scaling; it has the speedup's "
        "relative interval.",
        unit="of linear",
        has_interval=True,
        header="Eff.",
        style="percent",
        shown=True,
    ),
    Metric(
        key="serial_fraction",
        meaning="Karp–Flatt serial fraction that would explain a published speedup S, "
        "(1/S − 1/n) ÷ (1 − 1/n).",
        header="Serial",
        style="fraction",
        shown=True,
    ),
    Metric(
        key="exposed_communication_seconds",
        follows_throughput=True,
        meaning="Mean step time with gradient synchronization − without it, where each step takes "
        "as long as its slowest rank, from two windows of equal length in the same processes: "
        "seconds of communication that overlap does not hide, without waiting for stragglers.",
        unit="s",
        has_interval=True,
        header="Exposed comm",
        style="time",
        shown=True,
        trial=timed(throughput.exposed_communication_seconds),
        scale="linear",
    ),
    trial_metric(
        "elapsed_seconds",
        "Wall time of the timed window on the slowest rank.",
        timed(throughput.elapsed_seconds),
        unit="s",
    ),
    trial_metric(
        "initial_loss",
        "Loss of the first timed step, the sample-weighted mean over ranks.",
        of_losses(lambda values, _: values[0]),
        unit="loss",
    ),
    trial_metric(
        "loss_delta",
        "First timed loss − last timed loss.",
        of_losses(lambda values, _: values[0] - values[-1]),
    ),
    Metric(
        key="loss_slope_per_second",
        follows_throughput=True,
        meaning="How much the training loss falls per second: the Theil–Sen slope over the timed "
        "steps × steps per second; missing unless a run recorded two finite losses.",
        unit="per s",
        has_interval=True,
        header="Loss/s",
        style="significant",
        shown=True,
    ),
    Metric(
        key="loss_delta_per_step",
        meaning="(First timed loss − last timed loss) ÷ timed steps: loss per step, from two noisy "
        "mini-batches.",
        unit="per step",
        header="Loss delta/step",
        style="significant",
        trial=of_losses(lambda values, _: (values[0] - values[-1]) / len(values)),
        scale="loss",
    ),
    Metric(
        key="loss_delta_per_second",
        meaning="(First timed loss − last timed loss) ÷ seconds of the timed window, from two "
        "noisy mini-batches; without an interval, as repetitions share these batches.",
        unit="per s",
        header="Loss delta/s",
        style="significant",
        trial=of_losses(lambda values, seconds: (values[0] - values[-1]) / seconds),
        scale="loss",
    ),
    Metric(
        key="final_loss",
        meaning="Loss of the last timed step, the sample-weighted mean over ranks.",
        unit="loss",
        header="Final loss",
        style="significant",
        shown=True,
        trial=of_losses(lambda values, _: values[-1]),
        scale="loss",
    ),
    trial_metric(
        "flops_per_item",
        "Floating-point operations of forward and backward for one item.",
        attrgetter("flops_per_item"),
    ),
    Metric(
        key="mfu",
        follows_throughput=True,
        meaning="Model FLOPs utilization: floating-point operations per second ÷ the devices' peak "
        "for the trial's number format; empty for devices not in the built-in table.",
        header="MFU",
        style="percent",
        shown=True,
    ),
    Metric(
        key="peak_memory_bytes",
        kind="integer",
        meaning="Largest memory over ranks and repetitions: allocated on the GPU from warm-up to "
        "the end of the first timed segment, else resident on the host (whole process).",
        unit="B",
        header="Memory",
        style="memory",
        shown=True,
        trial=resources.peak_memory,
        scale="largest",
        better="lower",
        is_speed=False,
    ),
    trial_metric(
        "memory_imbalance",
        "Largest ÷ mean peak memory over ranks; missing for a single rank.",
        resources.memory_imbalance,
    ),
    *(
        Metric(
            key=f"step_seconds_p{percent}",
            meaning=meaning,
            unit="s",
            header=f"Step p{percent}",
            style="duration",
            trial=timed(partial(percentile, percent)),
            better="lower",
        )
        for percent, meaning in (
            (50, "Median time of a timed step, over all steps of all repetitions."),
            (95, "Time that 95 % of the timed steps did not exceed."),
        )
    ),
    Metric(
        key="rank_skew",
        meaning="(Slowest − fastest) ÷ median rank's mean step without synchronization, as a "
        "fraction; if that was not timed, with synchronization, which understates the skew.",
        unit="of the median rank",
        has_interval=True,
        header="Rank skew",
        style="percent",
        trial=timed(throughput.rank_skew),
        scale="linear",
    ),
    Metric(
        key="reduced_bytes_per_step",
        kind="integer",
        meaning="Bytes of gradients (or parameters) that a rank hands to all-reduce in a step.",
        unit="B",
        header="Reduced/step",
        style="memory",
        trial=lambda r: max(
            (n for rank in r.ranks if (n := rank.reduced_bytes_per_step) is not None), default=None
        ),
        scale="largest",
    ),
    Metric(
        key="setup_seconds",
        meaning="Time from the start of the slowest rank to its first warmup step.",
        unit="s",
        trial=lambda record: max((rank.setup_seconds for rank in record.ranks), default=None),
        better="lower",
        in_rows=False,
    ),
    trial_metric(
        "samples",
        "Samples that all ranks consumed in the timed window.",
        timed(lambda record: sum(rank.timed.samples for rank in record.ranks)),
        kind="integer",
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
        trial=timed(lambda r: min(len(rank.timed.step_seconds) for rank in r.ranks)),
        scale="smallest",
    ),
    Metric(
        key="verified",
        kind="boolean",
        meaning="Whether gradients were compared with those of one process in float64, or float32 "
        "above 67 million parameters, and agreed; missing if not compared.",
        header="Verified",
        row=attrgetter("verified"),
        trial=lambda r: None if r.verification is None else r.verification.passed,
    ),
    trial_metric(
        "max_relative_error",
        "Largest relative error of a gradient against one process.",
        lambda r: None if r.verification is None else r.verification.max_relative_error,
    ),
    Metric(
        key="status",
        kind="text",
        meaning="How the trials ended, and why if they did not all complete; a row without a "
        "completed trial has no speed.",
        header="Status",
        shown=True,
        row=lambda row: row.status.value,
        trial=lambda record: record.status.value,
    ),
    Metric(
        key="reason",
        kind="text",
        meaning="Why a trial did not complete.",
        row=attrgetter("reason"),
        trial=attrgetter("reason"),
    ),
)
"""Metrics in the order of a table's columns."""

COMPARED_METRICS = {one.key: one for one in METRICS if one.better}
"""Metrics that `compare` and `check` can compare."""
TABLE_METRICS = {one.key: one for one in METRICS if one.in_rows and one.header}
"""The columns that a table of configurations may have."""

"""Every metric of a sweep, declared once: key, meaning, how it is read, unit, how tables show it,
and which direction is better.

The order of the declarations is the order of the columns. To add a metric, add one declaration;
rows, tables and exports follow, and if one direction is better, `compare` and `check`. `frames` has
what only trials, ranks and steps have, `collectives` the metrics of collectives.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from operator import attrgetter, methodcaller
from statistics import fmean
from typing import Any, Generic, Literal, Self, TypeVar, get_type_hints

import numpy as np

from dpbench import units
from dpbench.analysis import formatting, resources, throughput
from dpbench.analysis.estimate import Estimate, geometric_mean, mean
from dpbench.analysis.losses import finite_losses, loss_slope_per_second
from dpbench.analysis.published import CLAIM_END
from dpbench.analysis.rows import Row
from dpbench.analysis.scaling import serial_fraction
from dpbench.records.trial import TrialRecord
from dpbench.specs import AXES, Configuration, WorkloadSpec, plain_label
from dpbench.specs.nodes import node_counts
from dpbench.specs.traits import INDEPENDENT

PlainValue = str | int | float | bool | None
Value = PlainValue | Estimate
Source = TypeVar("Source")
"""What values are read from."""
ValueType = Literal["text", "integer", "number", "boolean", "estimate"]
VALUE_TYPES: dict[type, ValueType] = {str: "text", int: "integer", float: "number"}
DATA_ONLY, ON_PAGES, ALWAYS = -1, 0, math.inf
"""Values of `Metric.importance` with a meaning of their own."""
ITEM_PLACEHOLDER = "items"
"""Stands in units for images, tokens or whatever a row counts; it stays where rows differ in it."""


def value_type_of(hint: Any) -> ValueType | None:
    """The type of the values of a field with this annotation; None if it has no single ones."""
    for single, value_type in VALUE_TYPES.items():
        if hint in (single, single | None):
            return value_type
    return None


@dataclass(frozen=True, slots=True)
class Metric(Generic[Source]):
    """A value of rows, or of collectives: how it is read, and the column of tables that has it."""

    key: str
    read: Callable[[Source], Value]
    """Returns None where there is no such value."""
    value_type: ValueType = "number"
    """A frame has the interval of an estimate, too, as `key`_low and `key`_high."""
    _: KW_ONLY
    of_trial: Callable[[TrialRecord], PlainValue] | None = None
    """Reads a row's value from a trial; None if only rows have it."""
    meaning: str = ""
    """Meaning in one sentence."""
    unit: str = ""
    """Unit of what is compared or an estimate; "items" stands for images, tokens, samples, …"""
    importance: float = ON_PAGES
    """Where its column is shown. Above 0, tables have it if it says something; on a narrow terminal
    the least important leave first, and ALWAYS stays. ON_PAGES: other tables have it if --columns
    names it. DATA_ONLY: no table has it, only data for programs."""
    header: str = ""
    """Column header, if it is not the key in words; "Items" stands for the architecture's item."""
    write: Callable[[Any], str] = formatting.plain
    """What writes a value."""
    words: Callable[[Source], str] | None = None
    """What tables write in a row that has a value, instead of the value; None if they write the
    value."""
    better: Literal["", "higher", "lower"] = ""
    """Which direction is better; "" if `compare` and `check` do not compare it."""

    def __post_init__(self) -> None:
        if not self.header:
            object.__setattr__(self, "header", self.key.replace("_", " ").capitalize())
        if self.better and self.of_trial is None:
            raise TypeError(f"{self.key}: a metric that is compared needs `of_trial`")

    @property
    def is_speed(self) -> bool:
        """Whether better means faster: a time or a rate."""
        return self.unit == "s" or self.unit.endswith("/s")

    def counting(self, items: Iterable[str]) -> Self:
        """The metric where these items are counted: "images/s" in its unit and "Images/s" in its
        header; if there are several, each value is written with its unit."""
        if ITEM_PLACEHOLDER not in self.unit:
            return self
        item, *others = {*items} or {ITEM_PLACEHOLDER}
        if others:
            return replace(self, write=formatting.rate_with_unit)
        header = self.header.replace(ITEM_PLACEHOLDER.capitalize(), item[:1].upper() + item[1:])
        return replace(self, unit=self.unit.replace(ITEM_PLACEHOLDER, item), header=header)


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


def mean_of_a_seed(values: Sequence[float], unit: str) -> float:
    """The mean of losses, which has no interval, as repetitions share a seed and its batches."""
    return fmean(values)


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


def exposed_words(row: Row) -> str:
    """Writes the exposed communication: a share of the step, so too noisy where the speed is."""
    exposed = throughput.exposed_communication(row.usable_records)
    if exposed is None or row.throughput in row.noisy_estimates:
        return formatting.TOO_NOISY
    return formatting.time_text(exposed)


def lr_words(row: Row) -> str:
    """Writes the learning rate with the rule that scaled it."""
    used = row.configuration
    return with_remark(f"{used.scaled_lr:g}", used.setting("lr_scaling")) if used else ""


def of_configuration(
    key: str, read: Callable[[Configuration], PlainValue], value_type: ValueType, **fields: Any
) -> Metric[Row]:
    """A metric that rows and trials have in their configuration."""

    def read_from(source: Row | TrialRecord) -> PlainValue:
        return read(source.configuration) if source.configuration else None

    return Metric(key=key, read=read_from, of_trial=read_from, value_type=value_type, **fields)


def of_repetitions(
    key: str,
    of_trial: Callable[[TrialRecord], Any],
    combine: Callable[[list[Any], str], Value],
    *,
    unit: str = "",
    **fields: Any,
) -> Metric[Row]:
    """A metric of trials whose value in a row combines those of its usable repetitions, one or
    more, in a unit."""

    def read(row: Row) -> Value:
        values = [value for value in map(of_trial, row.usable_records) if value is not None]
        return combine(values, unit) if values else None

    return Metric(key=key, read=read, of_trial=of_trial, unit=unit, **fields)


UNDER_LOAD = "†"
"""Marks rows that ran under load; `report.configurations` explains it."""
UNIT_IN_CLAIM = re.compile(r"\b([gm]i?b|gpu)\b")
SETTING_TYPES = get_type_hints(WorkloadSpec) | get_type_hints(Configuration)
"""Annotations of the settings of a configuration."""
METRICS: tuple[Metric[Row], ...] = (
    Metric(
        "implementation",
        attrgetter("implementation"),
        "text",
        of_trial=attrgetter("configuration.implementation"),
        meaning="Implementation that trains the replicas; in tables, settings that are not at "
        "their default follow in parentheses, and the backend after a slash.",
        words=series_words,
        importance=ALWAYS,
    ),
    Metric(
        "backend",
        lambda row: row.backend or None,
        "text",
        of_trial=attrgetter("configuration.backend"),
        meaning="How gradients travel: a backend, threads of one process, or none; published "
        "rows may have other names.",
    ),
    Metric(
        "group_size",
        attrgetter("group_size"),
        "integer",
        of_trial=attrgetter("configuration.group_size"),
        meaning="Group size: number of replicas that train together; across nodes, tables add the "
        "replicas of each node in parentheses.",
        header="Size",
        words=lambda row: with_remark(str(row.group_size), node_counts(row.replicas_by_node)),
        importance=ALWAYS,
    ),
    Metric(
        "batch_size",
        attrgetter("batch_size"),
        "integer",
        of_trial=attrgetter("configuration.batch_size"),
        meaning="Samples of each replica in a micro-step; in strong scaling, of all replicas "
        "together.",
        header="Batch",
        importance=ALWAYS,
    ),
    Metric(
        "label",
        attrgetter("label"),
        "text",
        of_trial=lambda record: plain_label(record.configuration),
        meaning="Name of the configuration, as tables and messages write it.",
        importance=DATA_ONLY,
    ),
    Metric(
        "global_batch_size",
        lambda row: getattr(row.configuration or row.published, "global_batch_size", 0) or None,
        "integer",
        of_trial=lambda record: record.configuration.global_batch_size or None,
        meaning="Samples of all replicas together in a micro-step.",
        header="Global batch",
    ),
    of_configuration(
        "lr",
        lambda used: used.setting("lr") and used.scaled_lr,
        "number",
        meaning="Learning rate that the optimizer used; tables add the rule that scaled it in "
        "parentheses.",
        header="Learning rate",
        words=lr_words,
    ),
    of_configuration(
        "lr_scaling",
        methodcaller("setting", "lr_scaling"),
        "text",
        meaning="How the learning rate follows the samples in a step.",
        importance=DATA_ONLY,
    ),
    *(
        of_configuration(
            name,
            methodcaller("setting", name),
            value_type_of(SETTING_TYPES[name]) or "text",
            meaning=axis.meaning,
            header=name.removesuffix("_mb").replace("_", " ").capitalize(),
        )
        for name, axis in AXES.items()
        if axis.meaning
    ),
    of_configuration(
        "nodes",
        lambda configuration: node_counts(configuration.replicas_by_node) or None,
        "text",
        meaning="Replicas on each node, as in 2+1; missing if all are on one.",
        importance=DATA_ONLY,
    ),
    Metric(
        "item",
        attrgetter("item"),
        "text",
        of_trial=attrgetter("facts.item"),
        meaning="What images_per_second counts: images, tokens, rows, samples or steps.",
        importance=DATA_ONLY,
    ),
    Metric(
        "images_per_second",
        attrgetter("throughput"),
        "estimate",
        of_trial=if_timed(throughput.items_per_second),
        meaning="Items (images, tokens, samples, …: the row's `item`) that all replicas consumed "
        "in the timed window ÷ the slowest rank's time from the opening barrier until its device "
        "is idle.",
        unit="items/s",
        header="Items/s",
        better="higher",
        importance=ALWAYS,
    ),
    Metric(
        "fixed_work_seconds",
        lambda row: (row.published and row.published.fixed_work_seconds) or None,
        meaning="Time for a fixed amount of work, in published rows without throughput.",
        header="Time",
        write=units.seconds,
        importance=10,
    ),
    Metric(
        "speedup",
        attrgetter("speedup"),
        "estimate",
        meaning="Throughput ÷ that of `single` at the same batch per replica (weak scaling) or "
        "global batch (strong); in results without `single`, ÷ that of the same implementation at "
        "group size 1.",
        write=formatting.ratio,
        importance=9,
    ),
    Metric(
        "speedup_relative",
        attrgetter("speedup_relative"),
        "estimate",
        meaning="Throughput ÷ that of the same implementation and backend at group size 1.",
        header="Relative speedup",
        write=formatting.ratio,
    ),
    Metric(
        "efficiency",
        attrgetter("efficiency"),
        "estimate",
        meaning="Efficiency: speedup ÷ replicas; 100 % is linear scaling.",
        header="Eff.",
        write=formatting.whole_percentage,
        importance=7,
    ),
    Metric(
        "serial_fraction",
        lambda row: (
            serial_fraction(row.speedup.value, row.group_size)
            if row.speedup and row.group_size > 1 and not row.configuration
            else None
        ),
        meaning="Karp–Flatt serial fraction of a published speedup S: (1/S − 1/n) ÷ (1 − 1/n).",
        header="Serial",
        write="{:.3f}".format,
        importance=2,
    ),
    Metric(
        "exposed_communication_seconds",
        lambda row: throughput.exposed_communication(row.usable_records),
        "estimate",
        of_trial=if_timed(throughput.exposed_communication_seconds),
        meaning="Communication that the backward pass does not hide: step time with gradient "
        "synchronization − without it, less the waiting for stragglers; in rows, the share that "
        "`explain` shows × the step.",
        header="Exposed comm",
        words=exposed_words,
        importance=5,
    ),
    Metric(
        "loss_slope_per_second",
        lambda row: loss_slope_per_second(row.usable_records, row.throughput),
        "estimate",
        meaning="Fall of the training loss: its Theil–Sen slope over the timed steps × steps per "
        "second; tables add the larger side of its interval.",
        header="Loss/s",
        write=formatting.slope,
        importance=6,
    ),
    of_repetitions(
        "loss_delta_per_step",
        of_losses(lambda values, _: (values[0] - values[-1]) / len(values)),
        mean_of_a_seed,
        meaning="(First − last timed loss) ÷ timed steps, from two noisy mini-batches.",
        header="Loss delta/step",
        write=formatting.three_digits,
    ),
    of_repetitions(
        "loss_delta_per_second",
        of_losses(lambda values, seconds: (values[0] - values[-1]) / seconds),
        mean_of_a_seed,
        meaning="(First − last timed loss) ÷ seconds of the timed window, from two noisy "
        "mini-batches.",
        header="Loss delta/s",
        write=formatting.three_digits,
    ),
    of_repetitions(
        "final_loss",
        of_losses(lambda values, _: values[-1]),
        mean_of_a_seed,
        meaning="Loss of the last timed step, the sample-weighted mean over ranks.",
        write=formatting.three_digits,
    ),
    Metric(
        "mfu",
        attrgetter("mfu"),
        "estimate",
        meaning="Model FLOPs utilization: operations per second ÷ the devices' peak at this dtype; "
        "empty for devices whose peak dpbench does not know.",
        header="MFU",
        write=formatting.clear_percentage,
        importance=4,
    ),
    of_repetitions(
        "peak_memory_bytes",
        resources.peak_memory,
        lambda peaks, unit: round(geometric_mean(peaks, unit).value),
        value_type="integer",
        meaning="Peak memory of the largest rank: allocated on the GPU from warm-up to the end of "
        "the first timed segment, else resident on the host (whole process).",
        unit="B",
        header="Memory",
        write=formatting.memory,
        better="lower",
        importance=3,
    ),
    *(
        of_repetitions(
            f"step_seconds_p{percent}",
            step_percentile(percent),
            geometric_mean,
            value_type="estimate",
            meaning=meaning,
            unit="s",
            header=f"Step p{percent}",
            write=formatting.time_text,
            better="lower",
        )
        for percent, meaning in (
            (50, "Median time of a timed step."),
            (95, "Time that 95 % of the timed steps did not exceed."),
        )
    ),
    of_repetitions(
        "rank_skew",
        if_timed(throughput.rank_skew),
        mean,
        value_type="estimate",
        meaning="(Slowest − fastest) ÷ median rank's mean step without synchronization; where that "
        "was not timed, with it, which understates the skew.",
        unit="of the median rank",
        write=formatting.clear_percentage,
    ),
    of_repetitions(
        "reduced_bytes_per_step",
        lambda record: max(
            (n for rank in record.ranks if (n := rank.reduced_bytes_per_step) is not None),
            default=None,
        ),
        lambda values, _: max(values),
        value_type="integer",
        meaning="Bytes of gradients (or parameters) that a rank hands to all-reduce in a step.",
        header="Reduced/step",
        write=formatting.memory,
    ),
    of_repetitions(
        "setup_seconds",
        lambda record: max((rank.setup_seconds for rank in record.ranks), default=None),
        mean,
        value_type="estimate",
        meaning="Time from the start of the slowest rank to its first warmup step.",
        unit="s",
        write=formatting.time_text,
        better="lower",
        importance=DATA_ONLY,
    ),
    Metric("repetitions", attrgetter("repetitions"), "integer", meaning="Completed repetitions."),
    of_repetitions(
        "timed_steps",
        if_timed(lambda r: min(len(rank.timed.step_seconds) for rank in r.ranks)),
        lambda values, _: min(values),
        value_type="integer",
        meaning="Timed steps of each repetition.",
    ),
    Metric(
        "verified",
        attrgetter("verified"),
        "boolean",
        of_trial=lambda r: proof.passed if (proof := r.facts.verification) else None,
        meaning="Whether gradients agreed with those of one process; missing if not compared.",
    ),
    Metric(
        "status",
        attrgetter("status.value"),
        "text",
        of_trial=attrgetter("status.value"),
        meaning="How the trials ended, and why if they did not all complete; a row without a "
        "completed trial has no speed.",
        words=attrgetter("status.words"),
        importance=8,
    ),
    Metric(
        "reason",
        attrgetter("reason"),
        "text",
        of_trial=attrgetter("reason"),
        meaning="Why a trial did not complete.",
        importance=DATA_ONLY,
    ),
)
"""Metrics in the order of a table's columns."""

COMPARED_METRICS: dict[str, Metric[Row]] = {
    metric.key: metric for metric in METRICS if metric.better
}
"""Metrics that `compare` and `check` can compare."""


def claimed_metrics(rows: Iterable[Row]) -> tuple[Metric[Row], ...]:
    """What published rows claim and nobody measured, a metric for each column."""
    names = dict.fromkeys(name for row in rows if row.published for name in row.published.claims)
    return tuple(map(_claimed_metric, names))


def _claimed_metric(name: str) -> Metric[Row]:
    words = name.removesuffix(CLAIM_END).replace("_", " ").capitalize()
    header = UNIT_IN_CLAIM.sub(lambda match: match[0].upper(), words)
    return Metric(
        name,
        lambda row: row.published and row.published.claims.get(name),
        "text",
        meaning="As the source of the numbers states it; not measured here.",
        header=f"{header} (claimed)",
        importance=1,
    )

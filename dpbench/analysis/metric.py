"""What a metric is: one column of configurations and trials, how it is read and how it is compared,
with the readers that the declarations in `metrics` share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from statistics import fmean
from typing import Any, Literal

import numpy as np

from dpbench.analysis import throughput
from dpbench.analysis.configuration import (
    ConfigurationSummary,
    by_configuration,
    effective_status,
    usable_repetitions,
)
from dpbench.analysis.estimate import Estimate, LogMean, mean
from dpbench.analysis.fields import NOISY, Field, FieldKind, Plain, ReadField, Value, Worded
from dpbench.analysis.losses.loss_curve import is_finite, losses
from dpbench.analysis.scaling import reference_of
from dpbench.records.trial import Status, TrialRecord
from dpbench.specs import TrialSpec
from dpbench.specs.axes import Axis

Reading = Callable[[TrialRecord], float | None]
ReadTrial = Callable[[TrialRecord], Plain]
ReadRow = Callable[[ConfigurationSummary], Value]
Scale = Literal["", "linear", "log", "loss", "largest"]
"""How the values of repetitions become the value of a row: the arithmetic or the geometric mean
with a t interval; for losses, which repetitions of one seed share, without an interval; the largest
value; "" where `summary` computes it, or rows do not have it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric(Field):
    """One column of configurations, of trials, or of both, and how it is compared."""

    trial: ReadTrial | None = None
    """Reads it from one trial; None if trials do not have it."""
    row: ReadRow | None = None
    """Reads it from a row; None if rows do not have it."""
    scale: Scale = ""
    better: Literal["", "higher", "lower"] = ""
    """Which direction is better; "" if `compare` and `check` do not compare it."""
    relative: bool = False
    """True if `trial` counts per replica against what the speedup is against, in the same
    repetition."""
    is_speed: bool = True
    """Whether better means faster."""

    @property
    def higher_is_better(self) -> bool:
        return self.better == "higher"

    @property
    def of_losses(self) -> bool:
        """Whether runs with the same seed are one sample of it."""
        return self.scale == "loss"

    def read(self, record: TrialRecord) -> float | None:
        """The number of one trial that is compared."""
        value = None if self.trial is None else self.trial(record)
        return None if value is None else float(value)

    def reader(self, records: Sequence[TrialRecord]) -> Reading:
        """The metric as a function of one record out of all those of a sweep."""
        return _efficiency(self.read, records) if self.relative else self.read

    def average(self, values: Sequence[float], unit: str) -> Estimate:
        """The mean over runs; on logarithms for positive values that are compared by ratio."""
        if self.of_losses:
            return mean([fmean(values)], unit=unit)
        if self.scale == "linear" or min(values) <= 0:
            return mean(values, unit=unit)
        return LogMean.of_runs(values).estimate(unit)

    def over(self, usable: Sequence[TrialRecord]) -> Value:
        """Combine the usable repetitions of a configuration to the value of its row."""
        if self.trial is None:
            return None
        values: list[Any] = [value for r in usable if (value := self.trial(r)) is not None]
        if not values:
            return None
        if self.scale == "largest":
            largest: Plain = max(values)
            return largest
        return self.average(values, self.unit)


def _efficiency(read: Reading, records: Sequence[TrialRecord]) -> Reading:
    """Reads per replica, relative to what speedups are against in the same pass of the sweep."""
    usable = {
        spec: {record.trial.repetition: record for record in usable_repetitions(group)}
        for spec, group in by_configuration(records).items()
    }
    reference = reference_of(spec for spec, found in usable.items() if found)

    def read_relative(record: TrialRecord) -> float | None:
        spec = record.trial.configuration
        base = usable.get(reference(spec), {}).get(record.trial.repetition)
        if base is None or base.trial.configuration == spec:
            return None
        mine, first = read(record), read(base)
        return None if mine is None or first is None else mine / first / spec.group_size

    return read_relative


def timed(read: Callable[[TrialRecord], Any]) -> Callable[[TrialRecord], Any]:
    """The reading, or None unless the trial completed and measured a window."""

    def read_timed(record: TrialRecord) -> Any:
        usable = effective_status(record) is Status.COMPLETED and throughput.is_measured(record)
        return read(record) if usable else None

    return read_timed


def of_losses(measure: Callable[[Sequence[float], float], float]) -> Reading:
    """Reads the timed steps' losses and seconds; None unless all losses are finite."""

    def read(record: TrialRecord) -> float | None:
        found = losses(record)
        if not found or not is_finite(found):
            return None
        return measure(found, throughput.elapsed_seconds(record))

    return timed(read)


def of_spec(read: Callable[[TrialSpec], Plain]) -> dict[str, Any]:
    """Readers of a setting; rows of published numbers have none."""
    return {
        "trial": lambda record: read(record.trial),
        "row": lambda row: None if row.configuration is None else read(row.configuration),
    }


def stored(key: str, **more: Any) -> dict[str, Any]:
    """A key whose value `summarize` stores in the row under it."""
    return {"key": key, "row": lambda row: row[key], **more}


def of_speed(key: str, **more: Any) -> dict[str, Any]:
    """A stored value that follows from the throughput; too noisy to print where that is."""

    def read(row: ConfigurationSummary) -> Value:
        value: Estimate | None = row[key]
        if value is None or row.throughput is None or not row.throughput.is_too_noisy:
            return value
        return Worded(value, NOISY)

    return {"key": key, "row": read, **more}


def percentile(percent: int, meaning: str) -> Metric:
    pooled = attrgetter(f"p{percent}_seconds")

    def read(record: TrialRecord) -> float:
        return float(np.percentile(throughput.step_seconds(record), percent))

    return Metric(
        key=f"step_seconds_p{percent}",
        meaning=meaning,
        unit="s",
        header=f"Step p{percent}",
        style="duration",
        row=lambda row: None if row.steps is None else pooled(row.steps),
        trial=timed(read),
        better="lower",
    )


def trial_field(key: str, meaning: str, read: ReadTrial, kind: FieldKind = "text") -> Metric:
    """A field that every trial has, and no row."""
    return Metric(key=key, kind=kind, meaning=meaning, trial=read)


def setting_field(name: str, setting: Axis) -> Metric:
    """The column of a setting, from its declaration."""
    return Metric(
        key=name,
        kind=setting.kind,
        meaning=setting.meaning,
        header=name.removesuffix("_mb").replace("_", " ").capitalize(),
        **of_spec(lambda trial: trial.setting(name)),
    )


def row_columns(declared: Sequence[Metric]) -> tuple[ReadField[ConfigurationSummary], ...]:
    """The fields of rows of configurations, in the order of their declarations."""
    return tuple(_column(one, one.row) for one in declared if one.row is not None)


def trial_fields(declared: Sequence[Metric]) -> tuple[ReadField[TrialRecord], ...]:
    """The fields of rows of trials, in the order of their declarations."""
    return tuple(
        _column(one, one.trial, ends=False, header="")
        for one in declared
        if one.trial is not None and not one.relative
    )


def _column(metric: Metric, read: Callable[[Any], Value], **changes: Any) -> ReadField[Any]:
    shared = {name: getattr(metric, name) for name in Field.__dataclass_fields__}
    return ReadField(**{**shared, **changes}, read=read)

"""A field that can be compared: how runs are averaged and related to each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from dpbench.analysis.estimate import Estimate, LogMean, mean
from dpbench.analysis.fields.field import SweepField
from dpbench.analysis.loss_agreement import loss_mean
from dpbench.analysis.outcome import by_configuration, usable_repetitions
from dpbench.records import TrialRecord
from dpbench.specs import TrialSpec

Reading = Callable[[TrialRecord], float | None]
Average = Callable[[Sequence[float], str], Estimate]
"""Combines the values of runs, given their unit."""


def geometric(values: Sequence[float], unit: str) -> Estimate:
    """Mean of values that are compared by ratio, on logarithms if all values are positive."""
    if min(values) <= 0:
        return mean(values, unit=unit)
    return LogMean.of_runs(values).estimate(unit)


def arithmetic(values: Sequence[float], unit: str) -> Estimate:
    """Mean of values that are compared by difference."""
    return mean(values, unit=unit)


def mean_of_losses(values: Sequence[float], unit: str) -> Estimate:
    """Mean of values that depend on one loss curve, which repetitions of one seed share."""
    return loss_mean(values, unit=unit)


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric(SweepField):
    """A field that can be compared: one number per run, None if not measured.

    Positive ones are compared by their ratio. Those that may be zero or negative have a
    `reference`: their difference is a part of the baseline's mean reference.
    """

    run: Reading
    """Reads it from one run; if the metric is `relative`, use `reader`."""
    higher_is_better: bool
    reference: Reading | None = None
    reference_words: str = ""
    relative: bool = False
    """True if `run` counts per replica against group size 1 of the same repetition."""
    is_speed: bool = True
    """Whether better means faster."""
    average: Average = geometric
    """The mean over the runs of one side."""
    of_losses: bool = False
    """Whether runs with the same seed are one sample of it."""
    counts_steps: bool = False
    """Whether it depends on the number of steps."""

    @property
    def additive(self) -> bool:
        return self.reference is not None

    def reader(self, records: Sequence[TrialRecord]) -> Reading:
        """The metric as a function of one record out of all those of a sweep."""
        return _against_one(self.run, records) if self.relative else self.run


def _against_one(read_run: Reading, records: Sequence[TrialRecord]) -> Reading:
    ones = {
        _run(record.trial): record
        for spec, group in by_configuration(records).items()
        if spec.group_size == 1
        for record in usable_repetitions(group)
    }

    def read(record: TrialRecord) -> float | None:
        size = record.trial.group_size
        one = ones.get(_run(record.trial))
        if size == 1 or one is None:
            return None
        mine, alone = read_run(record), read_run(one)
        return None if mine is None or alone is None else mine / alone / size

    return read


def _run(trial: TrialSpec) -> TrialSpec:
    """The parts of a run's specification shared with the run of its first replica alone in the same
    pass."""
    return replace(trial.of_one_replica, trace_steps=0)

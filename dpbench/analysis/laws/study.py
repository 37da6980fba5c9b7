"""A series with its analysis: its efficiency, its law, and the law's predictions.

Leaving out each point once shows how well the law predicts within the data; beyond the data the
hold-outs of published tables show it (see `band`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dpbench.analysis.estimate import Estimate
from dpbench.analysis.laws.band import Misspecification, sizes_beyond
from dpbench.analysis.laws.classical import Trend, karp_flatt_estimate, trend
from dpbench.analysis.laws.fit import Prediction, ScalingFit, fit
from dpbench.analysis.laws.series import LoneStep, Point, Series, require_points
from dpbench.analysis.scaling import BASELINE, gain, speedup
from dpbench.errors import UsageError
from dpbench.specs.traits import IMPLEMENTATIONS

MOST_LEFT_OUT = 50


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """Options: what to fit, on which points, and what to predict."""

    train_up_to: int | None = None
    """Points beyond this size are withheld from the fit, and shown beside its predictions."""
    predict: tuple[int, ...] | None = None
    """Group sizes to predict. None means the withheld sizes; if there are none, twice and four
    times the largest."""
    basis: tuple[str, ...] | None = None
    """Terms; None means those of the implementation."""
    misspecification: Misspecification | None = None
    """Error of the law; None means that of published tables."""
    baseline: int = 1
    """The group size that efficiencies refer to."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """Measured or predicted values for a group size."""

    prediction: Prediction
    efficiency: Estimate | None = None
    karp_flatt: Estimate | None = None
    """Karp-Flatt fraction, for measured sizes beyond the baseline."""
    last_efficiency: float | None = None
    """Throughput at predicted sizes if the efficiency of the fit's largest size were kept."""
    withheld: float | None = None
    """The measured throughput, if the fit did not see it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LeaveOneOut:
    """Symmetric mean absolute percentage errors (SMAPE) at the same points, as fractions."""

    law: float
    last_efficiency: float
    """Error of keeping the efficiency of the next smaller group size: a law has to beat it."""
    points: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Study:
    """The analysis of one series."""

    series: Series
    """The series, with the withheld points."""
    fit: ScalingFit
    baseline: Point
    measured: tuple[Row, ...]
    predicted: tuple[Row, ...]
    leave_one_out: LeaveOneOut | None

    @property
    def trend(self) -> Trend | None:
        """Trend of the Karp-Flatt fraction along the measured sizes."""
        return trend([row.karp_flatt for row in self.measured if row.karp_flatt])

    @property
    def faster_than_linear(self) -> tuple[int, ...]:
        """Group sizes whose efficiency is above 1 with its whole interval."""
        return tuple(
            row.prediction.group_size
            for row in self.measured
            if row.efficiency and row.efficiency.ends[0] > 1
        )


def study(series: Series, wanted: Wanted) -> Study:
    """Analyse a series; raises UsageError if it cannot be fitted, or has no baseline."""
    limit = wanted.train_up_to
    trained = series if limit is None else series.up_to(limit)
    require_points(trained, because="" if limit is None else f" with --train-up-to {limit}")
    baseline = trained.point(wanted.baseline)
    if baseline is None:
        sizes = ", ".join(map(str, trained.group_sizes))
        raise UsageError(
            f"{series.label}: no baseline at group size {wanted.baseline}; measure it, or name "
            f"another with --baseline (there are {sizes})"
        )
    found = fit(trained, basis=wanted.basis, misspecification=wanted.misspecification)
    withheld = tuple(n for n in series.group_sizes if n not in trained.group_sizes)
    sizes_wanted = wanted.predict or withheld or sizes_beyond(trained.group_sizes)
    return Study(
        series=series,
        fit=found,
        baseline=baseline,
        measured=tuple(_measured(found, baseline, point) for point in trained.points),
        predicted=tuple(_predicted(found, baseline, n, series) for n in sizes_wanted),
        leave_one_out=leave_one_out(trained, wanted.basis),
    )


def _measured(found: ScalingFit, baseline: Point, point: Point) -> Row:
    series, growth = found.series, point.group_size / baseline.group_size
    prediction = found.predict(point.group_size)
    if point == baseline:
        return Row(prediction=prediction, efficiency=replace(BASELINE, unit="of linear"))
    ratio = _speedup(series, baseline, point)
    return Row(
        prediction=prediction,
        efficiency=ratio.scaled(1 / growth, unit="of linear"),
        karp_flatt=karp_flatt_estimate(ratio, growth) if growth > 1 else None,
    )


def _speedup(series: Series, baseline: Point, point: Point) -> Estimate:
    """Speedup as in every other table: in a sweep, paired if the repetitions allow it."""
    if baseline.speed is not None and point.speed is not None:
        return gain(baseline.speed, point.speed)
    return speedup(series.throughput(baseline), series.throughput(point))


def _predicted(found: ScalingFit, baseline: Point, group_size: int, whole: Series) -> Row:
    """A predicted row; a measured one if the size was measured."""
    trained = found.series
    if (point := trained.point(group_size)) is not None:
        return _measured(found, baseline, point)
    prediction = found.predict(group_size)
    seen = whole.point(group_size)
    kept = last_efficiency(trained, trained.points[-1], group_size)
    linear = trained.throughput(baseline).value * group_size / baseline.group_size
    speed = prediction.throughput
    return Row(
        prediction=prediction,
        efficiency=None if speed is None else speed.scaled(1 / linear, unit="of linear"),
        last_efficiency=None if speed is None else trained.items(group_size) / kept,
        withheld=None if seen is None else whole.throughput(seen).value,
    )


def leave_one_out(series: Series, basis: Sequence[str] | None = None) -> LeaveOneOut | None:
    """Errors at every point but the first, which the efficiency refers to; None below three points.

    For a long series only `MOST_LEFT_OUT` points are left out, spread evenly, since each needs a
    fit.
    """
    if len(series.points) < 3:
        return None
    law, last = [], []
    count = min(len(series.points) - 1, MOST_LEFT_OUT)
    for place in np.linspace(1, len(series.points) - 1, count).round().astype(int).tolist():
        left_out = series.points[place]
        others = replace(series, points=(*series.points[:place], *series.points[place + 1 :]))
        truth = left_out.step_seconds.value
        law.append(_error(truth, fit(others, basis=basis, refits=0).seconds(left_out.group_size)))
        kept = last_efficiency(series, series.points[place - 1], left_out.group_size)
        last.append(_error(truth, kept))
    return LeaveOneOut(
        law=math.fsum(law) / count, last_efficiency=math.fsum(last) / count, points=count
    )


def last_efficiency(series: Series, last: Point, group_size: int) -> float:
    """The step time at a group size if efficiency stays as at `last`: throughput grows as n.

    In weak scaling that is the same step time, in strong scaling n times less work per replica.
    """
    growth = series.items(group_size) / series.items(last.group_size)
    return last.step_seconds.value * growth * last.group_size / group_size


def _error(truth: float, predicted: float) -> float:
    return 2 * abs(predicted - truth) / (predicted + truth)


def study_all(
    series: Sequence[Series], wanted: Wanted
) -> tuple[tuple[Study, ...], tuple[str, ...]]:
    """All series that can be analysed, and why the others cannot.

    Raises UsageError if none can: with the reason of the only one, or of the first.
    """
    studies = []
    reasons: dict[str, None] = {}
    for one in series:
        try:
            studies.append(study(one, wanted))
        except UsageError as error:
            if not _is_one_replica(one, series):
                reasons[str(error)] = None
    if not studies:
        more = len(reasons) - 1
        others = f" (and {more} more series that cannot be fitted)" if more > 0 else ""
        raise UsageError(f"{next(iter(reasons), 'nothing measured to fit')}{others}")
    return tuple(studies), tuple(reasons)


def _is_one_replica(one: Series, everything: Sequence[Series]) -> bool:
    """Whether a series is no scaling series by design: the plain module, or the step of one replica
    that a strong series divides."""
    traits = IMPLEMENTATIONS.get(one.implementation or "")
    if traits is not None and traits.largest_group == 1:
        return True
    if one.scaling != "strong" or one.group_sizes != (1,) or one.batch_size is None:
        return False
    lone = LoneStep(batch_size=one.batch_size, step_seconds=one.points[0].step_seconds)
    return any(lone in other.lone_steps for other in everything if len(other.points) > 1)

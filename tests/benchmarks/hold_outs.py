"""The extrapolator's own test: train on small group sizes, predict the withheld ones.

Every case is a fit to a series up to some group size, with a prediction at twice or four times
that size, where the series goes on. Three points or more make a fit: with fewer, bandwidth and
latency cannot be told apart, and no error of a law shows.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dpbench.analysis.laws.band import (
    FEWEST_HOLD_OUTS,
    HOLD_OUT_COLUMNS,
    LawError,
    calibrated,
    envelope,
)
from dpbench.analysis.laws.fit import ScalingFit, fit, solve, term_values
from dpbench.analysis.laws.series import Series
from dpbench.analysis.laws.study import last_efficiency

FACTORS = (2, 4)
FEWEST_POINTS = 3
LAW, LAST = "law", "last efficiency"


@dataclass(frozen=True, kw_only=True, slots=True)
class HoldOut:
    """One withheld point."""

    series: str
    trained_up_to: int
    group_size: int
    measured: float
    """Items per second."""
    predicted: Mapping[str, float]
    """Items per second, by model; see `MODELS`."""
    low: float
    high: float
    """The band of the law."""
    octaves: float
    """Doublings to the nearest group size of the fit."""
    alternatives: tuple[float, float] = (0.0, 0.0)
    """ln of the shortest and the longest step that other terms would give, which fit as well."""

    @property
    def factor(self) -> int:
        return self.group_size // self.trained_up_to

    @property
    def is_covered(self) -> bool:
        return self.low <= self.measured <= self.high

    @property
    def residual(self) -> float:
        """ln(measured ÷ predicted step time) ÷ √octaves: what the band of a law is made of.

        Where other terms fit as well, what is left of it beyond them: a band adds both as squares.
        """
        error = math.log(self.predicted[LAW] / self.measured)
        spanned = max(0.0, self.alternatives[1]) if error > 0 else min(0.0, self.alternatives[0])
        left = math.sqrt(max(0.0, error**2 - spanned**2))
        return math.copysign(left, error) / math.sqrt(self.octaves)

    def band(self, error: LawError) -> tuple[float, float]:
        """Throughputs, if the law had this error."""
        low, high = error.reach(self.octaves)
        speed = self.predicted[LAW]
        slower = math.hypot(max(0.0, self.alternatives[1]), high)
        faster = math.hypot(min(0.0, self.alternatives[0]), low)
        return speed * math.exp(-slower), speed * math.exp(faster)

    def error(self, model: str) -> float:
        """Predicted ÷ measured throughput - 1."""
        return self.predicted[model] / self.measured - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelErrors:
    """|error| of a model over the cases at one factor, as fractions."""

    model: str
    factor: int
    cases: int
    median: float
    p90: float
    largest: float


AMDAHL, USL, FREE_USL, RULE_OF_THUMB = "Amdahl", "USL", "USL, free signs", "n - 0.3"
MODELS = (LAW, LAST, AMDAHL, USL, FREE_USL, RULE_OF_THUMB)
"""In weak scaling Amdahl's law is const and lin, USL const, lin and n(n-1). The rule of thumb says
that the speedup is n - 0.3 (TabTune's multi-GPU guide, §14), which makes 0.7 of one replica."""


def hold_outs(series: Sequence[Series]) -> tuple[HoldOut, ...]:
    """Every case that the series have, in their order; labels tell series apart."""
    return tuple(case for one in series for case in _cases(one))


def between_hold_outs(series: Sequence[Series]) -> tuple[HoldOut, ...]:
    """Each group size but the first and the last left out of a fit to the others."""
    return _predicted(
        _case(_of_sizes(one, [n for n in one.group_sizes if n != left_out]), left_out, one)
        for one in map(_anywhere, filter(_is_weak, series))
        for left_out in one.group_sizes[1:-1]
        if len(one.group_sizes) > FEWEST_POINTS
    )


def two_size_hold_outs(series: Sequence[Series]) -> tuple[HoldOut, ...]:
    """Fitted to the two smallest group sizes, predicted at twice and four times the larger one."""
    return _predicted(
        _case(_of_sizes(one, one.group_sizes[:2]), one.group_sizes[1] * factor, one)
        for one in map(_anywhere, filter(_is_weak, series))
        for factor in FACTORS
        if one.group_sizes[1] * factor in one.group_sizes
    )


def two_size_between_hold_outs(series: Sequence[Series]) -> tuple[HoldOut, ...]:
    """Fitted to the smallest and the largest group size, predicted at all between them."""
    return _predicted(
        _case(_of_sizes(one, (one.group_sizes[0], one.group_sizes[-1])), between, one)
        for one in map(_anywhere, filter(_is_weak, series))
        for between in one.group_sizes[1:-1]
    )


def _predicted(cases: Iterable[HoldOut | None]) -> tuple[HoldOut, ...]:
    return tuple(case for case in cases if case is not None)


def _is_weak(series: Series) -> bool:
    return series.scaling == "weak" and series.batch_size is not None


def _of_sizes(series: Series, sizes: Sequence[int]) -> Series:
    return replace(series, points=tuple(p for p in series.points if p.group_size in sizes))


def _anywhere(series: Series) -> Series:
    """Whether a measured node boundary lies between is the table's affair, not the law's."""
    return replace(series, replicas_per_node=None)


def unusable_reason(series: Series) -> str | None:
    """Why a series has no case; None if it has one."""
    if series.scaling != "weak":
        return "strong scaling: the law is one of weak scaling"
    if series.batch_size is None:
        return "the work of a replica is not stated"
    if not _pairs(series):
        return f"fewer than {FEWEST_POINTS} group sizes with twice the largest of them withheld"
    return None


def errors(cases: Sequence[HoldOut]) -> tuple[ModelErrors, ...]:
    """By factor, then by model."""
    found = []
    for factor in FACTORS:
        at = [case for case in cases if case.factor == factor]
        for model in MODELS if at else ():
            sizes = np.abs([case.error(model) for case in at])
            found.append(
                ModelErrors(
                    model=model,
                    factor=factor,
                    cases=len(at),
                    median=float(np.median(sizes)),
                    p90=float(np.quantile(sizes, 0.9)),
                    largest=float(sizes.max()),
                )
            )
    return tuple(found)


def leave_one_series_out(cases: Sequence[HoldOut]) -> tuple[HoldOut, ...] | None:
    """The cases, each with the law's error as the other series alone show it for its band.

    None if some series leaves too few others to calibrate on.
    """
    independent = []
    for case in cases:
        others = [other.residual for other in cases if other.series != case.series]
        if len(others) < FEWEST_HOLD_OUTS:
            return None
        low, high = case.band(calibrated(others, source="the other series"))
        independent.append(replace(case, low=low, high=high))
    return tuple(independent)


def own_error(cases: Sequence[HoldOut]) -> LawError | None:
    """The band's misspecification that these cases alone would give; None if they are too few."""
    if len(cases) < FEWEST_HOLD_OUTS:
        return None
    return calibrated([case.residual for case in cases], source="these hold-outs")


def as_csv(cases: Sequence[HoldOut]) -> str:
    """A file that `band.misspecification_from` reads."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HOLD_OUT_COLUMNS)
    for case in cases:
        speeds = (f"{value:.6g}" for value in (case.measured, case.predicted[LAW]))
        writer.writerow([case.series, case.trained_up_to, case.group_size, *speeds])
    return text.getvalue()


def _pairs(series: Series) -> list[tuple[int, int]]:
    """(trained up to, predicted), as far as the series goes."""
    sizes = series.group_sizes
    return [
        (largest, largest * factor)
        for largest in sizes[FEWEST_POINTS - 1 :]
        for factor in FACTORS
        if largest * factor in sizes
    ]


def _cases(series: Series) -> tuple[HoldOut, ...]:
    if unusable_reason(series):
        return ()
    anywhere = _anywhere(series)
    return _predicted(
        _case(anywhere.up_to(largest), size, anywhere) for largest, size in _pairs(series)
    )


def _case(trained: Series, group_size: int, series: Series) -> HoldOut | None:
    """None where the fit refuses to predict."""
    withheld = series.point(group_size)
    assert withheld is not None
    found = fit(trained)
    throughput = found.predict(group_size).throughput
    if throughput is None:
        return None
    assert throughput.interval is not None
    items = series.items(group_size)
    drawn = found.draws @ term_values(found.terms, [group_size])[0]
    return HoldOut(
        series=series.label,
        trained_up_to=trained.group_sizes[-1],
        group_size=group_size,
        octaves=found.reach.octaves(group_size),
        alternatives=envelope(np.log(drawn / found.seconds(group_size))),
        measured=series.throughput(withheld).value,
        predicted={
            name: items / seconds for name, seconds in _step_seconds(found, group_size).items()
        },
        low=throughput.interval[0],
        high=throughput.interval[1],
    )


def _usl_terms(group_size: float) -> tuple[float, float, float]:
    """Terms 1, n-1, n(n-1): in weak scaling the step time of USL is linear in them, that of Amdahl
    in the first two, with coefficients T(1) × (1, σ, κ)."""
    return 1.0, group_size - 1, group_size * (group_size - 1)


def _step_seconds(found: ScalingFit, group_size: int) -> dict[str, float]:
    """By model, of the same points."""
    trained = found.series
    terms = np.array([_usl_terms(n) for n in trained.group_sizes], dtype=float)
    measured = np.array([point.step_seconds.value for point in trained.points])
    free = np.linalg.lstsq(terms / measured[:, None], np.ones(len(measured)), rcond=None)[0]
    usl, _ = solve(terms, measured, 1 / measured, (0, 1, 2))
    amdahl, _ = solve(terms, measured, 1 / measured, (0, 1))
    at_size = _usl_terms(group_size)
    first = trained.points[0]
    speedups = [n - 0.3 if n > 1 else 1.0 for n in (first.group_size, group_size)]
    slowdown = group_size / first.group_size * speedups[0] / speedups[1]
    return {
        LAW: found.seconds(group_size),
        LAST: last_efficiency(trained, trained.points[-1], group_size),
        AMDAHL: float(amdahl @ at_size),
        USL: float(usl @ at_size),
        FREE_USL: float(free @ at_size),
        RULE_OF_THUMB: first.step_seconds.value * slowdown,
    }

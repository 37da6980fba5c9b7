"""The extrapolator's own test: train on small group sizes, predict the withheld ones.

Every case is a fit to a series up to some group size, with a prediction at twice or four times
that size, where the series goes on. Three points or more make a fit: with fewer, bandwidth and
latency cannot be told apart, and no error of a law shows.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dpbench.analysis.laws.band import COLUMNS, FEWEST_HOLD_OUTS, LawError, calibrated
from dpbench.analysis.laws.fit import ScalingFit, fit, solve
from dpbench.analysis.laws.series import Series
from dpbench.analysis.laws.speedup_laws import usl_terms
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

    @property
    def factor(self) -> int:
        return self.group_size // self.trained_up_to

    @property
    def octaves(self) -> float:
        return math.log2(self.factor)

    @property
    def is_covered(self) -> bool:
        return self.low <= self.measured <= self.high

    @property
    def residual(self) -> float:
        """ln(measured ÷ predicted step time) ÷ √octaves: what the band of a law is made of."""
        return math.log(self.predicted[LAW] / self.measured) / math.sqrt(self.octaves)

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
        low, high = calibrated(others, source="the other series").reach(case.octaves)
        speed = case.predicted[LAW]
        independent.append(replace(case, low=speed * math.exp(-high), high=speed * math.exp(-low)))
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
    writer.writerow(COLUMNS)
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


def _cases(series: Series) -> list[HoldOut]:
    if unusable_reason(series):
        return []
    # Whether a measured node boundary lies between is the table's affair, not the law's.
    anywhere = replace(series, replicas_per_node=None)
    return [_case(anywhere, largest, size) for largest, size in _pairs(series)]


def _case(series: Series, largest: int, group_size: int) -> HoldOut:
    trained, withheld = series.up_to(largest), series.point(group_size)
    assert withheld is not None
    found = fit(trained)
    throughput = found.predict(group_size).throughput
    assert throughput is not None
    assert throughput.interval is not None
    items = series.items(group_size)
    return HoldOut(
        series=series.label,
        trained_up_to=largest,
        group_size=group_size,
        measured=series.throughput(withheld).value,
        predicted={
            name: items / seconds for name, seconds in _step_seconds(found, group_size).items()
        },
        low=throughput.interval[0],
        high=throughput.interval[1],
    )


def _step_seconds(found: ScalingFit, group_size: int) -> dict[str, float]:
    """By model, of the same points."""
    trained = found.series
    terms = np.array([usl_terms(n) for n in trained.group_sizes], dtype=float)
    measured = np.array([point.step_seconds.value for point in trained.points])
    free = np.linalg.lstsq(terms / measured[:, None], np.ones(len(measured)), rcond=None)[0]
    usl, _ = solve(terms, measured, 1 / measured, (0, 1, 2))
    amdahl, _ = solve(terms, measured, 1 / measured, (0, 1))
    at_size = usl_terms(group_size)
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

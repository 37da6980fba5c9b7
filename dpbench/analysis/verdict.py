"""The verdict of a check: regressed, pass or inconclusive, in the form of an equivalence test.

A row regressed if the lower bound of its slow-down lies above 1 + tolerance, and passes if the
upper bound lies below it; both bounds are one-sided at 95 %. That no row may be called regressed
by mere chance, those tests are corrected for being many (Holm); that *all* rows pass needs no
correction, because each of them has to (intersection-union test). With 5 runs a side that spread
by 1 % and a tolerance of 3 %, an unchanged candidate passes in 99 of 100 cases, one that is 6 %
slower regresses in 99, and one at the tolerance itself in 5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dpbench.analysis.comparison import Comparison, differences_of
from dpbench.analysis.differences import Array, Differences, holm

Outcome = Literal["regressed", "pass", "inconclusive"]
ALPHA = 0.05
ONE_SIDED = 1 - 2 * ALPHA
"""Confidence of the two-sided interval whose ends are the one-sided 95 % bounds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RowVerdict:
    """One comparison against its tolerance."""

    comparison: Comparison
    outcome: Outcome
    tolerance: float
    low: float | None
    """One-sided lower 95 % bound of the slow-down; None without an interval."""
    high: float | None
    p_regressed: float | None
    """Of the test that the slow-down exceeds the tolerance, corrected for the number of rows."""
    minimum_detectable_effect: float | None
    any_change: bool
    """Tells whether the 95 % interval of the slow-down leaves out 1: worth a look, no verdict."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """The worst outcome of its rows."""

    outcome: Outcome
    rows: tuple[RowVerdict, ...]


def judge(comparisons: Sequence[Comparison], tolerance: float | Mapping[str, float]) -> Verdict:
    """Holds every comparison to a tolerance: 0.03 for 3 %, or one for each metric by its key.

    Raises ValueError if there is nothing to judge or a tolerance is not positive.
    """
    if not comparisons:
        raise ValueError("expected at least one comparison to judge, got none")
    tolerances = [
        tolerance[row.metric] if isinstance(tolerance, Mapping) else tolerance
        for row in comparisons
    ]
    if not all(one > 0 for one in tolerances):
        raise ValueError(f"tolerance: expected numbers > 0, got {tolerances}")
    differences = differences_of(comparisons)
    limits = np.array(
        [c.limit(one) for c, one in zip(comparisons, tolerances, strict=True)], dtype=np.float64
    )
    regressed, passed, p_values = decide(differences, limits)
    low, high = differences.bounds(ONE_SIDED)
    rows = tuple(
        RowVerdict(
            comparison=row,
            outcome="regressed" if regressed[i] else "pass" if passed[i] else "inconclusive",
            tolerance=tolerances[i],
            low=row.as_slowdown(low[i]),
            high=row.as_slowdown(high[i]),
            p_regressed=None if np.isnan(p_values[i]) else float(p_values[i]),
            minimum_detectable_effect=row.minimum_detectable_effect,
            any_change=row.slowdown is not None
            and row.slowdown.interval is not None
            and not row.slowdown.contains(1.0),
        )
        for i, row in enumerate(comparisons)
    )
    return Verdict(outcome=_worst([row.outcome for row in rows]), rows=rows)


def decide(
    differences: Differences, limits: Array
) -> tuple[NDArray[np.bool_], NDArray[np.bool_], Array]:
    """Which rows regressed, which pass, and the corrected p-values of "regressed".

    The last axis holds the rows that are judged together; a row without an error is neither.
    """
    p_values = holm(differences.p_above(limits))
    return p_values < ALPHA, differences.p_below(limits) < ALPHA, p_values


def _worst(outcomes: Sequence[Outcome]) -> Outcome:
    if "regressed" in outcomes:
        return "regressed"
    return "inconclusive" if "inconclusive" in outcomes else "pass"

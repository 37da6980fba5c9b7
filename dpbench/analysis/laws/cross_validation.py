"""How well a law says what it has not seen, within the data: each point left out once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dpbench.analysis.laws.fit import fit
from dpbench.analysis.laws.series import Point, Series

MOST_LEFT_OUT = 50


@dataclass(frozen=True, kw_only=True, slots=True)
class LeaveOneOut:
    """Symmetric mean absolute percentage errors (SMAPE), as fractions, of the same points."""

    law: float
    last_efficiency: float
    """Of keeping the efficiency of the next smaller group size: what a law has to beat."""
    points: int


def leave_one_out(series: Series, basis: Sequence[str] | None = None) -> LeaveOneOut | None:
    """Of every point but the first, which the efficiency refers to; None below three points.

    Of a long series as many points as `MOST_LEFT_OUT`, spread evenly; each takes a fit.
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
    """The step time at a group size if efficiency stays as it is at `last`: throughput grows as n.

    In weak scaling that is the same step time, in strong scaling n times less work per replica.
    """
    growth = series.items(group_size) / series.items(last.group_size)
    return last.step_seconds.value * growth * last.group_size / group_size


def _error(truth: float, predicted: float) -> float:
    return 2 * abs(predicted - truth) / (predicted + truth)

"""Operating characteristics of a check at the observed spread: its chances to pass and to catch.

A row passes if the t statistic of its difference lies far enough below the tolerance, and regresses
if it lies far enough above. If the true difference is known that statistic follows a noncentral t
distribution, so both chances can be computed for a candidate that is unchanged, slower by the
tolerance, or by twice that.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass

import numpy as np

from dpbench.analysis.differences import POWER, detectable_difference
from dpbench.analysis.distributions import noncentral_t_below, t_quantile

MOST_REPETITIONS = 200
"""Most repetitions that are advised: beyond these, the tolerance should be raised."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Chances:
    """Chances, 0 to 1, for a row with as many and as noisy runs as those that were judged."""

    passes_unchanged: float
    """Chance to pass if the candidate is as fast as the baseline."""
    caught_at_tolerance: float
    """Chance to be called regressed if the candidate is slower by exactly the tolerance."""
    caught_at_twice: float
    """Chance to be called regressed if the candidate is slower by twice the tolerance."""


def chances(
    standard_error: float | None,
    degrees_of_freedom: float | None,
    limit: float,
    twice: float,
    *,
    alpha: float,
    rows: int = 1,
) -> Chances | None:
    """The chances of one of `rows` rows that are judged together; None without an error.

    `limit` and `twice` are the tolerance and twice of it on the scale of the error. Holm's
    correction is taken at its strictest, that of the first row, so that the last two chances are
    lower bounds.
    """
    if standard_error is None or degrees_of_freedom is None or not standard_error < math.inf:
        return None
    if standard_error == 0:  # equal runs: anything beyond the limit is seen
        return Chances(passes_unchanged=1.0, caught_at_tolerance=0.0, caught_at_twice=1.0)
    return Chances(
        passes_unchanged=_beyond(limit / standard_error, degrees_of_freedom, alpha),
        caught_at_tolerance=_beyond(0.0, degrees_of_freedom, alpha / rows),
        caught_at_twice=_beyond((twice - limit) / standard_error, degrees_of_freedom, alpha / rows),
    )


def _beyond(noncentrality: float, degrees_of_freedom: float, alpha: float) -> float:
    """The chance that t exceeds its 1 - alpha quantile."""
    critical = float(t_quantile(degrees_of_freedom, 1 - alpha))
    return 1 - noncentral_t_below(degrees_of_freedom, noncentrality, critical)


def repetitions_to_settle(
    standard_error: float | None,
    repetitions: tuple[int, int],
    limit: float,
    *,
    alpha: float,
    paired: bool,
) -> int | None:
    """The fewest runs per side that settle a row in 4 of 5 cases, if the candidate is unchanged or
    slower by twice the tolerance; None if out of reach or the spread is not known."""
    if standard_error is None:
        return None
    first, second = repetitions
    spread = standard_error / math.sqrt(1 / first + 1 / second)

    def suffices(count: int) -> bool:
        error = np.array(spread * math.sqrt(2 / count))
        freedom = np.array(float(count - 1) * (1 if paired else 2))
        return bool(detectable_difference(error, freedom, alpha, POWER) <= limit)

    counts = range(2, MOST_REPETITIONS + 1)
    found = bisect_left(counts, True, key=suffices)  # more runs never detect less
    return counts[found] if found < len(counts) else None

"""Power of a comparison: the smallest difference that its runs detect, and how many runs it takes.

"Detected" means that the one-sided t test at `alpha` finds a slow-down with probability `power`.
The same number is the smallest tolerance that an unchanged candidate passes with that probability,
because the t statistic then lies as far below the tolerance as it would lie above zero. With a
spread between runs of 1 % it is 2.5, 1.7, 1.2, 0.8 % at 3, 5, 10, 20 runs a side; at an alpha of
0.02, 3.3, 2.1, 1.4, 0.9 %. (At 3 runs the power is 0.74 rather than 0.8: Welch's test then has
fewer degrees of freedom.)
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass

import numpy as np
from scipy.special import nctdtr, nctdtrinc, stdtrit

from dpbench.analysis.comparisons.differences import ALPHA
from dpbench.analysis.estimate import Floats

POWER = 0.8
MOST_REPETITIONS = 200
"""Most repetitions that are advised: beyond these, the tolerance should be raised."""


def detectable_difference(
    standard_error: Floats, degrees_of_freedom: Floats, alpha: float = ALPHA, power: float = POWER
) -> Floats:
    """The smallest detectable difference for a known error, in its unit, for example of logarithms.

    The noncentrality at which t exceeds its 1 - alpha quantile with probability `power`, in
    standard errors; NaN where the error is.
    """
    critical = stdtrit(degrees_of_freedom, 1 - alpha)
    return np.asarray(nctdtrinc(degrees_of_freedom, 1 - power, critical) * standard_error)


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
    critical = float(stdtrit(degrees_of_freedom, 1 - alpha))
    return 1 - float(nctdtr(degrees_of_freedom, noncentrality, critical))


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

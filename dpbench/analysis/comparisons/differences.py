"""Differences between two groups of runs, and what runs can detect: the arithmetic of compare and
check.

A value is one run (never one step: steps of a run are not independent, and treating them as
independent makes four in ten comparisons of a thing with itself look different). Runs are the last
axis of an array.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass

import numpy as np
from scipy.special import nctdtrinc, stdtr, stdtrit

from dpbench.analysis.estimate import Floats

ROUNDING = 1e-12
"""Differences of logarithms, or of parts of a step, below this are rounding."""

ALPHA = 0.05
"""Level of a test of data that is looked at once."""
POWER = 0.8
"""Probability with which a detectable difference is detected."""
MOST_REPETITIONS = 200
"""Most repetitions that are advised."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Differences:
    """Candidate - baseline, with degrees of freedom and error for a t interval; NaN for too few
    runs."""

    center: Floats
    standard_error: Floats
    degrees_of_freedom: Floats

    def bounds(self, confidence: float) -> tuple[Floats, Floats]:
        """Ends of the two-sided t interval."""
        reach = stdtrit(self.degrees_of_freedom, 0.5 + confidence / 2) * self.standard_error
        return self.center - reach, self.center + reach

    def p_different(self) -> Floats:
        """p-value of "there is no difference"."""
        return 2 * np.minimum(self.p_above(0.0), self.p_below(0.0))

    def p_above(self, limit: float | Floats) -> Floats:
        """The p-value of "the difference is larger than the limit"."""
        return self._tail(limit - self.center)

    def p_below(self, limit: float | Floats) -> Floats:
        """The p-value of "the difference is smaller than the limit"."""
        return self._tail(self.center - limit)

    def _tail(self, distance: Floats) -> Floats:
        # Runs that are all equal have no error: any distance is then infinitely many errors.
        with np.errstate(divide="ignore", invalid="ignore"):
            errors = np.where(distance == 0, 0.0, distance / self.standard_error)
        return np.asarray(stdtr(self.degrees_of_freedom, errors))


def welch(baseline: Floats, candidate: Floats) -> Differences:
    """Differences of independent runs; degrees of freedom by Welch-Satterthwaite."""
    first, u, p = _mean(baseline)
    second, v, q = _mean(candidate)
    total = u + v
    with np.errstate(divide="ignore", invalid="ignore"):
        # As shares of the sum, so that squares of tiny errors do not vanish.
        shares = (u / total) ** 2 / p + (v / total) ** 2 / q
        freedom = np.where(total == 0, p + q, 1 / shares)
    return _differences(second - first, total, freedom)


def mean_difference(changes: Floats) -> Differences:
    """The mean of changes, along the last axis, as a difference from zero."""
    return _differences(*_mean(changes))


def holm(p_values: Floats) -> Floats:
    """p-values corrected for multiple tests along the last axis (Holm 1979); NaN counts as no test.

    The smallest of m is multiplied by m, the next by m - 1 …, and none falls below a smaller one.
    """
    order = np.argsort(p_values, axis=-1)  # NaN last
    tests = (~np.isnan(p_values)).sum(axis=-1, keepdims=True)
    factors = np.maximum(tests - np.arange(p_values.shape[-1]), 1)
    ascending = np.take_along_axis(p_values, order, axis=-1) * factors
    corrected = np.empty_like(p_values)
    running = np.maximum.accumulate(ascending, axis=-1).clip(max=1.0)
    np.put_along_axis(corrected, order, running, axis=-1)
    return corrected


def _mean(samples: Floats) -> tuple[Floats, Floats, Floats]:
    """Mean, its squared standard error, degrees of freedom, along the last axis."""
    count = samples.shape[-1]
    if count < 2:
        missing = np.full(samples.shape[:-1], np.nan)
        return (samples.mean(axis=-1) if count else missing), missing, missing
    freedom = np.full(samples.shape[:-1], float(count - 1))
    return samples.mean(axis=-1), samples.var(axis=-1, ddof=1) / count, freedom


def _differences(center: Floats, squared_error: Floats, freedom: Floats) -> Differences:
    return Differences(
        center=np.where(np.abs(center) < ROUNDING, 0.0, center),
        standard_error=np.sqrt(squared_error),
        degrees_of_freedom=freedom,
    )


def detectable_difference(
    standard_error: Floats, degrees_of_freedom: Floats, alpha: float
) -> Floats:
    """The smallest detectable difference for a known error, in its unit, for example of logarithms.

    The noncentrality at which t exceeds its 1 - alpha quantile with probability `POWER`, in
    standard errors; NaN where the error is.
    """
    critical = stdtrit(degrees_of_freedom, 1 - alpha)
    return np.asarray(nctdtrinc(degrees_of_freedom, 1 - POWER, critical) * standard_error)


def repetitions_to_settle(
    standard_error: float,
    repetitions: tuple[int, int],
    limit: float,
    *,
    alpha: float,
    paired: bool,
) -> int | None:
    """The fewest runs per side that settle a row in 4 of 5 cases, if the candidate is unchanged or
    slower by twice the tolerance; None if out of reach."""
    first, second = repetitions
    spread = standard_error / math.sqrt(1 / first + 1 / second)

    def suffices(count: int) -> bool:
        error = np.array(spread * math.sqrt(2 / count))
        freedom = np.array(float(count - 1) * (1 if paired else 2))
        return bool(detectable_difference(error, freedom, alpha) <= limit)

    counts = range(2, MOST_REPETITIONS + 1)
    found = bisect_left(counts, True, key=suffices)  # more runs never detect less
    return counts[found] if found < len(counts) else None

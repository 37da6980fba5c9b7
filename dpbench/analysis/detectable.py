"""The smallest slow-down that so many runs can be expected to show, and how many runs one needs.

Detected means: the one-sided t test at `alpha` finds it, with probability `power`. The same number
is the smallest tolerance that an unchanged candidate passes with that probability, because the
t statistic then lies as far below the tolerance as it would lie above zero.
With a spread between runs of 1 % it is 2.5, 1.7, 1.2, 0.8 % at 3, 5, 10, 20 runs a side; at an
alpha of 0.02, 3.3, 2.1, 1.4, 0.9 %. (At 3 runs the power is 0.74 rather than 0.8: Welch's test
then has fewer degrees of freedom.)
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import nctdtrinc, stdtrit

from dpbench.analysis.differences import Array

ALPHA = 0.05
POWER = 0.8
MOST_REPETITIONS = 1_000_000


def minimum_detectable_effect(
    cv: float, repetitions: int, alpha: float = ALPHA, power: float = POWER
) -> float:
    """The smallest slow-down, 0.02 for 2 %, that `repetitions` runs a side detect.

    `cv` is the relative standard deviation between runs. Raises ValueError for fewer than two
    repetitions and for a cv that is not a finite number >= 0.
    """
    if not (math.isfinite(cv) and cv >= 0):
        raise ValueError(f"cv {cv!r}: expected a finite number >= 0")
    if repetitions < 2:
        raise ValueError(f"repetitions {repetitions!r}: expected at least 2")
    error = np.array(cv * math.sqrt(2 / repetitions))
    freedom = np.array(2.0 * repetitions - 2)
    return float(np.expm1(detectable_difference(error, freedom, alpha, power)))


def detectable_difference(
    standard_error: Array, degrees_of_freedom: Array, alpha: float = ALPHA, power: float = POWER
) -> Array:
    """The same for differences with a known error, in their unit: of logarithms, say.

    The noncentrality at which t exceeds its 1 - alpha quantile with probability `power`, in
    standard errors; NaN where the error is.
    """
    critical = stdtrit(degrees_of_freedom, 1 - alpha)
    noncentrality: Array = nctdtrinc(degrees_of_freedom, 1 - power, critical)
    return noncentrality * standard_error


def repetitions_for(
    cv: float, tolerance: float, alpha: float = ALPHA, power: float = POWER
) -> int | None:
    """The fewest runs a side that detect a slow-down of `tolerance`; None beyond a million.

    Raises ValueError for a tolerance that is not a finite number > 0.
    """
    if not (math.isfinite(tolerance) and tolerance > 0):
        raise ValueError(f"tolerance {tolerance!r}: expected a finite number > 0")

    def suffice(repetitions: int) -> bool:
        return minimum_detectable_effect(cv, repetitions, alpha, power) <= tolerance

    too_few, enough = 1, 2
    while not suffice(enough):
        if enough > MOST_REPETITIONS:
            return None
        too_few, enough = enough, enough * 2
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        too_few, enough = (too_few, middle) if suffice(middle) else (middle, enough)
    return enough

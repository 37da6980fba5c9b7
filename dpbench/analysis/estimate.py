"""Estimates, measured numbers as reports accept them: value, unit, interval and sample size.

Intervals are two-sided t intervals. Speeds are averaged and compared on the logarithmic scale,
because a speed is a ratio and its errors are relative: the geometric mean of run throughputs with
a t interval on their logarithms; `change` has the ratio of two of them. The interval is that of the
typical run (the median one): in simulations it covers that in 95 to 97 % of sweeps, also where some
runs are outliers. The mean of all runs that a busy machine could give is another quantity, which
four runs cannot bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import variance
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
CONFIDENCE = 0.95
"""Confidence of the intervals of what was measured."""
BAND_CONFIDENCE = 0.90
"""Confidence of predicted bands: quantiles further out would need more published tables than
exist."""
Basis = Literal["repetitions", "step batches", "single value", "definition", "model"]
"""Source of an interval: the spread between runs; only the noise within one run; none, because
there is one value; none, because the number is 1 by definition, or given by the user; the band of a
law or a simulation, including its own error."""
MIN_PAIRS = 5
"""Fewest runs that are paired: fewer lose more degrees of freedom than a shared disturbance gives
back."""
TOO_NOISY_RATIO = 3.0
"""An estimate is too noisy if its interval's upper end is more than this many times the lower."""
MAX_LOGARITHM = 700.0
"""Largest logarithm of a number; those of very different runs can exceed the range of floats."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """A number with its uncertainty; `low` and `high` are None if there is no interval."""

    value: float
    unit: str
    sample_size: int
    """Number of values behind the number: repetitions, or batches of steps, according to
    `basis`."""
    basis: Basis
    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        numbers = [n for n in (self.value, self.low, self.high) if n is not None]
        if not all(math.isfinite(n) for n in numbers):
            raise ValueError(f"an estimate must be finite, got {numbers}")
        if (self.low is None) != (self.high is None):
            raise ValueError("an estimate has both ends of its interval or none")
        if self.sample_size < 1:
            raise ValueError(f"an estimate has at least one value, got {self.sample_size}")

    @property
    def confidence(self) -> float:
        """Confidence of its interval."""
        return BAND_CONFIDENCE if self.basis == "model" else CONFIDENCE

    @property
    def interval(self) -> tuple[float, float] | None:
        return None if self.low is None or self.high is None else (self.low, self.high)

    @property
    def ends(self) -> tuple[float, float]:
        """The interval; without one, the value at both ends."""
        return self.interval or (self.value, self.value)

    @property
    def sides(self) -> tuple[float, float]:
        """How far the interval reaches below and above the value; 0 without one."""
        low, high = self.ends
        return self.value - low, high - self.value

    @property
    def is_too_noisy(self) -> bool:
        """Whether the interval of a positive number spans more than a factor of TOO_NOISY_RATIO."""
        low, high = self.ends
        return low > 0 and high > TOO_NOISY_RATIO * low

    def scaled(self, factor: float, *, unit: str) -> Estimate:
        """The same estimate in another unit or per part; `factor` is positive and exact."""
        return self.mapped(lambda value: value * factor, unit=unit)

    def mapped(self, function: Callable[[float], float], *, unit: str) -> Estimate:
        """An exact function of it that rises or falls over the whole interval."""
        low, high = (None, None) if self.interval is None else sorted(map(function, self.interval))
        return replace(self, value=function(self.value), low=low, high=high, unit=unit)


def geometric_mean(values: Sequence[float], unit: str) -> Estimate:
    """The estimate for runs whose positive values are compared by ratio, with a t interval on
    logarithms."""
    if len(values) == 1:
        return single_value(values[0], unit)
    return mean([math.log(value) for value in values], unit).mapped(exponential, unit=unit)


def exponential(logarithm: float) -> float:
    """The number with this logarithm, within the range of floats."""
    return math.exp(max(-MAX_LOGARITHM, min(logarithm, MAX_LOGARITHM)))


def single_value(value: float, unit: str) -> Estimate:
    """A number of unknown uncertainty, such as a published one."""
    return Estimate(value=value, unit=unit, sample_size=1, basis="single value")


def mean(values: Sequence[float], unit: str) -> Estimate:
    """The arithmetic mean of runs with a t interval, for values that may be zero or negative."""
    center = math.fsum(values) / len(values)
    if len(values) == 1:
        return single_value(center, unit)
    reach = t_quantile(len(values) - 1) * math.sqrt(variance(values) / len(values))
    return Estimate(
        value=center,
        low=center - reach,
        high=center + reach,
        unit=unit,
        sample_size=len(values),
        basis="repetitions",
    )


@cache
def t_quantile(degrees_of_freedom: float, confidence: float = CONFIDENCE) -> float:
    """Half-width of a two-sided t interval in standard errors: 12.71 at 1, 2.78 at 4."""
    from scipy.special import stdtrit  # a third of a second, which a sweep need not wait for

    return float(stdtrit(degrees_of_freedom, 0.5 + confidence / 2))


def product(first: Estimate, second: Estimate, *, unit: str) -> Estimate:
    """Product of two independent estimates, of which the second is positive.

    First-order propagation, each side of the interval by itself: the distance of an end is the
    root of the summed squares of what each factor alone contributes to it (MOVER: Zou and Donner,
    "Construction of confidence intervals about effect measures", 2008). A factor without an
    interval leaves the product without one.
    """
    value = first.value * second.value
    low = high = None
    if first.interval is not None and second.interval is not None:
        swing = sorted(first.value * (end - second.value) for end in second.interval)
        below, above = ((end - first.value) * second.value for end in first.interval)
        low = value - math.hypot(below, swing[0])
        high = value + math.hypot(above, swing[1])
    return Estimate(
        value=value,
        low=low,
        high=high,
        unit=unit,
        sample_size=min(first.sample_size, second.sample_size),
        basis=first.basis if low is not None else "single value",
    )

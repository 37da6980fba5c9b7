"""Estimates, measured numbers as reports accept them: value, unit, interval and sample size.

Intervals are two-sided t intervals. Speeds are averaged and compared on the logarithmic scale,
because a speed is a ratio and its errors are relative: the geometric mean of run throughputs with
a t interval on their logarithms, and Welch's t on logarithms for a ratio of two of them. The
interval is that of the typical run (the median one): in simulations it covers that in 95 to 97 %
of sweeps, also where some runs are outliers. The mean of all runs that a busy machine could give
is another quantity, which four runs cannot bound.
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
TOO_NOISY = 3.0
"""Ratio of the ends of an interval from which its value says nothing."""
MAX_REACH = 300.0
"""Largest half-width on logarithms; two very different runs can exceed the range of floats."""


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
    def half_width(self) -> float | None:
        """The larger side of the interval."""
        return None if self.interval is None else max(self.sides)

    @property
    def is_too_noisy(self) -> bool:
        """Whether the interval of a positive number spans more than a factor of TOO_NOISY."""
        low, high = self.ends
        return low > 0 and high > TOO_NOISY * low

    def scaled(self, factor: float, *, unit: str) -> Estimate:
        """The same estimate in another unit or per part; `factor` is positive and exact."""
        return self.mapped(lambda value: value * factor, unit=unit)

    def mapped(self, function: Callable[[float], float], *, unit: str) -> Estimate:
        """An exact function of it that rises or falls over the whole interval."""
        low, high = (None, None) if self.interval is None else sorted(map(function, self.interval))
        return replace(self, value=function(self.value), low=low, high=high, unit=unit)


@dataclass(frozen=True, kw_only=True, slots=True)
class GeometricMean:
    """A geometric mean of runs, or the ratio of two, with the uncertainty of its logarithm."""

    value: float
    squared_error: float | None
    """Squared standard error of ln(value); None for a single value."""
    degrees_of_freedom: float
    sample_size: int

    @classmethod
    def of_runs(cls, values: Sequence[float]) -> GeometricMean:
        """The geometric mean of independent runs."""
        logs = [math.log(value) for value in values]
        return cls(
            value=math.exp(math.fsum(logs) / len(logs)) if len(logs) > 1 else values[0],
            squared_error=variance(logs) / len(logs) if len(logs) > 1 else None,
            degrees_of_freedom=len(logs) - 1,
            sample_size=len(logs),
        )

    @property
    def error(self) -> float:
        """Standard error of ln(value); infinite for a single value."""
        return math.inf if self.squared_error is None else math.sqrt(self.squared_error)

    def over(self, denominator: GeometricMean) -> GeometricMean:
        """The ratio to an independent mean (Welch); the sample size is that of the smaller side.

        Degrees of freedom (Welch-Satterthwaite): (u + v)² / (u²/p + v²/q), u and v squared errors.
        """
        u, v = self.squared_error, denominator.squared_error
        total = None if u is None or v is None else u + v
        freedom = self.degrees_of_freedom + denominator.degrees_of_freedom
        if u is not None and v is not None and total:
            # Scaled by the sum, so that squares of tiny errors do not underflow.
            parts = (u / total) ** 2 / self.degrees_of_freedom
            parts += (v / total) ** 2 / denominator.degrees_of_freedom
            freedom = 1 / parts
        return GeometricMean(
            value=self.value / denominator.value,
            squared_error=total,
            degrees_of_freedom=freedom,
            sample_size=min(self.sample_size, denominator.sample_size),
        )

    def estimate(self, unit: str) -> Estimate:
        """The estimate with a t interval on logarithms; without one where the error is unknown."""
        if self.squared_error is None:
            return single_value(self.value, unit)
        reach = min(t_quantile(self.degrees_of_freedom) * self.error, MAX_REACH)
        return Estimate(
            value=self.value,
            low=self.value * math.exp(-reach),
            high=self.value * math.exp(reach),
            unit=unit,
            sample_size=self.sample_size,
            basis="repetitions",
        )


def geometric_mean(values: Sequence[float], unit: str) -> Estimate:
    """The estimate for runs whose positive values are compared by ratio."""
    return GeometricMean.of_runs(values).estimate(unit)


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

"""The uncertainty of numbers that are made of others."""

from __future__ import annotations

from dataclasses import replace
from math import hypot

from dpbench.analysis.estimate import WEAKEST_FIRST, Estimate


def product(first: Estimate, second: Estimate, *, unit: str) -> Estimate:
    """Two independent estimates, of which the second is positive, multiplied.

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
        low = value - hypot(below, swing[0])
        high = value + hypot(above, swing[1])
    return Estimate(
        value=value,
        low=low,
        high=high,
        unit=unit,
        sample_size=min(first.sample_size, second.sample_size),
        basis=min(first.basis, second.basis, key=WEAKEST_FIRST.index),
    )


def inverse(rate: Estimate) -> Estimate:
    """1 ÷ a positive rate, with the ends of its interval exchanged."""
    low, high = rate.interval or (None, None)
    return replace(
        rate,
        value=1 / rate.value,
        low=None if high is None else 1 / high,
        high=None if low is None else 1 / low,
        unit=f"1/({rate.unit})",
    )

"""The classical laws of speedup: Amdahl, Gustafson, the universal scalability law, Karp-Flatt."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from dpbench.analysis.estimate import Estimate

Trend = Literal["growing", "constant", "falling"]
SAME_FRACTION = 0.05
"""Karp-Flatt fractions without intervals that are closer than this, relative, show no trend."""


def amdahl(serial_fraction: float, group_size: float) -> float:
    """Speedup at a fixed total work; `serial_fraction` is that of the run on one replica."""
    return 1 / (serial_fraction + (1 - serial_fraction) / group_size)


def gustafson(serial_fraction: float, group_size: float) -> float:
    """Speedup at a fixed work per replica; `serial_fraction` is that of the parallel run.

    It is not interchangeable with Amdahl's: one is a share of T(1), the other of T(n).
    """
    return serial_fraction + (1 - serial_fraction) * group_size


def usl(contention: float, coherency: float, group_size: float) -> float:
    """Gunther's universal scalability law: throughput relative to one replica.

    n / (1 + σ(n-1) + κ n(n-1)), with contention σ and coherency κ; κ = 0 is Amdahl's law.
    """
    others = group_size - 1
    return group_size / (1 + contention * others + coherency * group_size * others)


def usl_peak(contention: float, coherency: float) -> float:
    """The group size of the highest throughput, √((1-σ)/κ); infinite without coherency cost."""
    return math.inf if coherency == 0 else math.sqrt((1 - contention) / coherency)


def karp_flatt(speedup: float, ratio: float) -> float:
    """The serial fraction that would explain a speedup: (1/S - 1/k) / (1 - 1/k).

    `ratio` k is the group size divided by that of the baseline. In weak scaling it is
    (1/E - 1) / (k - 1), with efficiency E. It is a number for each group size, never one for all:
    a falling one means that the overhead saturates. Raises ValueError for a ratio of 1 or less.
    """
    if ratio <= 1:
        raise ValueError(f"ratio {ratio!r}: Karp-Flatt takes more replicas than the baseline")
    return (1 / speedup - 1 / ratio) / (1 - 1 / ratio)


def karp_flatt_estimate(speedup: Estimate, ratio: float) -> Estimate:
    """The Karp-Flatt fraction with the interval of the speedup: a higher speedup gives a lower
    fraction."""
    return speedup.mapped(lambda value: karp_flatt(value, ratio), unit="of the baseline's time")


def trend(fractions: Sequence[Estimate]) -> Trend | None:
    """Trend of Karp-Flatt fractions from the first to the last; None for fewer than two.

    It is also constant if their intervals cannot distinguish them.
    """
    if len(fractions) < 2:
        return None
    first, last = fractions[0], fractions[-1]
    change = last.value - first.value
    if first.interval and last.interval:
        same = first.interval[0] <= last.interval[1] and last.interval[0] <= first.interval[1]
    else:
        same = abs(change) <= SAME_FRACTION * max(abs(first.value), abs(last.value))
    if same:
        return "constant"
    return "growing" if change > 0 else "falling"

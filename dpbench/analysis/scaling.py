"""Speedup and efficiency.

From throughputs X:  speedup = X(n) / X(1), at a fixed batch per replica (weak scaling) or at a
                     fixed global batch (strong scaling).
From times T of the same work:  speedup = T(1) / T(n).
Efficiency = speedup / n; 1 is linear scaling.

In a sweep, X(1) is the throughput of `single`, the plain module, with the same settings, so that
the fastest row has the highest speedup. Only a sweep or a published table without `single` is
relative to the same implementation at group size 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Literal, get_args

from dpbench.analysis.estimate import Estimate

SpeedKind = Literal["time", "throughput"]

UNITY = Estimate(value=1.0, unit="×", sample_size=1, basis="definition")
"""The speedup of a reference over itself."""
OWN_ONE_REPLICA = "its own group size 1"
"""Reference of a speedup where there is no `single`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ScalingPoint:
    """One group size of a curve against its start."""

    group_size: int
    value: float
    speedup: float
    """Speedup over `start_group_size` replicas."""
    efficiency: float
    """Share of linear scaling from there; above 1 it is faster than linear."""
    karp_flatt: float | None
    """See `serial_fraction`; None at and below the start."""
    start_group_size: int


def serial_fraction(speedup: float, growth: float) -> float:
    """The Karp–Flatt serial fraction that would explain a speedup on `growth` times the replicas,
    (1/S - 1/n) / (1 - 1/n): if it falls as groups grow, the overhead saturates."""
    return (1 / speedup - 1 / growth) / (1 - 1 / growth)


def analyze_scaling(
    start: float,
    values: Mapping[int, float],
    kind: SpeedKind = "time",
    *,
    start_group_size: int = 1,
) -> tuple[ScalingPoint, ...]:
    """Compute speedup, efficiency and the Karp–Flatt fraction of each group size.

        >>> two, four = dpbench.analyze_scaling(120.0, {2: 65.0, 4: 35.0})
        >>> round(four.speedup, 2), round(four.efficiency, 2)
        (3.43, 0.86)

    Args:
        start: The time or throughput of one replica, or of `start_group_size` replicas.
        values: The time or throughput of each group size, in the unit of `start`.
        kind: "time" of a fixed amount of work, or "throughput".
        start_group_size: The group size that speedups are over.

    Raises:
        ValueError: A value is not a positive number, or a group size not a whole number >= 1.
    """
    if kind not in get_args(SpeedKind):
        raise ValueError(f"kind {kind!r}: expected one of {', '.join(get_args(SpeedKind))}")
    sizes = (start_group_size, *values)
    if wrong := [n for n in sizes if isinstance(n, bool) or not isinstance(n, Integral) or n < 1]:
        raise ValueError(f"group size {wrong[0]!r}: expected a whole number >= 1")
    first = _positive("start", start)
    points = []
    for n, number in sorted(values.items()):
        value = _positive(f"{kind} at group size {n}", number)
        gain = first / value if kind == "time" else value / first
        growth = n / start_group_size
        points.append(
            ScalingPoint(
                group_size=n,
                value=value,
                speedup=gain,
                efficiency=gain / growth,
                karp_flatt=serial_fraction(gain, growth) if growth > 1 else None,
                start_group_size=start_group_size,
            )
        )
    return tuple(points)


def _positive(name: str, value: object) -> float:
    if isinstance(value, Real) and not isinstance(value, bool) and 0 < float(value) < math.inf:
        return float(value)
    raise ValueError(f"{name} is {value!r}: expected a positive number")

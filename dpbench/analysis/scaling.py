"""Speedup and efficiency.

From throughputs X:  speedup = X(n) / X(1), at a fixed batch per replica (weak scaling) or at a
                     fixed global batch (strong scaling).
From times T of the same work:  speedup = T(1) / T(n).
Efficiency = speedup / n; 1 is linear scaling. With a baseline at p replicas in place of one, both
are relative to it: k = n / p, and efficiency = speedup / k.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Literal

from dpbench.analysis.estimate import Estimate, LogMean, ratio
from dpbench.analysis.laws.speedup_laws import karp_flatt

Kind = Literal["time", "throughput"]
KINDS: tuple[Kind, ...] = ("time", "throughput")

# Wider than any time or throughput, and no ratio of two such numbers overflows.
_SMALLEST, _LARGEST = 1e-100, 1e100

BASELINE = Estimate(value=1.0, unit="×", sample_size=1, basis="baseline")
"""The speedup of the baseline against itself."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ScalingPoint:
    """One group size against the baseline."""

    group_size: int
    value: float
    speedup: float
    """Over the baseline, of `baseline_group_size` replicas."""
    efficiency: float
    """Of linear scaling from the baseline on."""
    karp_flatt: float | None
    """The serial fraction that would explain the speedup; None at and below the baseline."""
    baseline_group_size: int = 1

    @property
    def faster_than_linear(self) -> bool:
        return self.efficiency > 1


def speedup(baseline: LogMean, current: LogMean, *, kind: Kind = "throughput") -> Estimate:
    """How many times as fast as the baseline, with its interval."""
    return ratio(current, baseline) if kind == "throughput" else ratio(baseline, current)


def efficiency(speedup: Estimate, group_size: int) -> Estimate:
    """The part of linear scaling that is reached: speedup / n."""
    return speedup.scaled(1 / group_size, unit="of linear")


def analyze_scaling(
    baseline: float,
    values: Mapping[int, float],
    kind: Kind = "time",
    *,
    baseline_group_size: int = 1,
) -> tuple[ScalingPoint, ...]:
    """Compares group sizes with the time or throughput of one replica, or of the smallest group
    that was measured: then speedups are over that group, as every point says.

    `analyze_scaling(120.0, {2: 65.0, 4: 35.0})` gives speedups 1.846 and 3.429. Raises ValueError
    for a value that is not a positive number, for a group size that is not a whole number >= 1,
    and for a value at the group size of the baseline that is not the baseline's.
    """
    if kind not in KINDS:
        raise ValueError(f"kind {kind!r}: expected one of {', '.join(KINDS)}")
    if not isinstance(values, Mapping):
        raise ValueError(f"values: expected {{group size: {kind}}}, got {type(values).__name__}")
    base_size = _group_size(baseline_group_size)
    base = LogMean.of_single(_positive("baseline", baseline))
    points = []
    for group_size, value in sorted((_group_size(n), value) for n, value in values.items()):
        current = LogMean.of_single(_positive(f"{kind} at group size {group_size}", value))
        if group_size == base_size and current.value != base.value:
            raise ValueError(
                f"{kind} at group size {group_size} is {value!r}, but the baseline, of the same "
                f"group size, is {baseline!r}"
            )
        gain = speedup(base, current, kind=kind).value
        growth = group_size / base_size
        points.append(
            ScalingPoint(
                group_size=group_size,
                value=current.value,
                speedup=gain,
                efficiency=gain / growth,
                karp_flatt=karp_flatt(gain, growth) if growth > 1 else None,
                baseline_group_size=base_size,
            )
        )
    return tuple(points)


def _group_size(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise ValueError(f"group size {value!r}: expected a whole number >= 1")
    return int(value)


def _positive(name: str, value: object) -> float:
    # `not <=`: NaN compares false with everything, so it is turned away too.
    if (
        isinstance(value, bool)
        or not isinstance(value, Real)
        or value < _SMALLEST
        or not value <= _LARGEST
    ):
        raise ValueError(
            f"{name} is {value!r}: expected a positive number from {_SMALLEST:g} to {_LARGEST:g}"
        )
    return float(value)

"""Group sizes where a fitted law may predict, and the reason where it is refused.

Distance is one reason: a curve is trusted near its points only. The points themselves are another:
a law that misses one of them has not seen what happens there, and one that falls below the last
measured step would promise more replicas for less time than fewer of them take.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dpbench import units
from dpbench.analysis.laws.series import Point, Series
from dpbench.analysis.provenance import FARTHEST, Kind

LARGE_MISFIT = 0.05
"""Share of a measured step: a law that misses one by more, and by more than the step's noise, has
not seen all effects."""
SHORTFALL = 0.02
"""Share of the last measured step: a law that ends lower by less may owe it to the rounding of a
published number; or to noise, if that is known and larger."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reach:
    """The basis of a fit, and so where it may predict."""

    measured: tuple[int, ...]
    """Measured group sizes, ascending."""
    replicas_per_node: int | None = None
    """Replicas per node; None if not known, so that no prediction is refused for it."""
    most_replicas: int | None = None
    """Most replicas: a shared batch has at least one sample for each; None if it is not shared."""

    def kind(self, group_size: int) -> Kind:
        if self.refusal(group_size):
            return "refused"
        if group_size in self.measured:
            return "measured"
        return "interpolated" if group_size < self.measured[-1] else "extrapolated"

    def refusal(self, group_size: int) -> str | None:
        """Why there is no prediction; None if there is one."""
        smallest, largest = self.measured[0], self.measured[-1]
        if group_size < smallest:
            return f"{group_size} is below the smallest measured group size, {smallest}"
        if group_size > FARTHEST * largest:
            return (
                f"{group_size} is {group_size / largest:.3g} × the largest measured group size, "
                f"{largest}; a fitted curve is trusted up to {FARTHEST} × "
                "(dpbench project simulates the step on a given network)"
            )
        if self.most_replicas is not None and group_size > self.most_replicas:
            return (
                f"{group_size} replicas cannot share a batch of {self.most_replicas}; "
                "each needs a sample"
            )
        node = self.replicas_per_node
        if node is not None and group_size > node >= largest:
            return (
                f"{group_size} replicas take more than one node of {node}, and no measurement "
                "crosses nodes; what their link costs is unknown "
                "(dpbench project takes a --topology)"
            )
        return None

    def octaves(self, group_size: int) -> float:
        """Doublings between a group size and the nearest measured one."""
        return min(abs(math.log2(group_size / n)) for n in self.measured)


def sizes_beyond(measured: Sequence[int]) -> tuple[int, ...]:
    """Group sizes predicted by default: twice and four times the largest."""
    return 2 * max(measured), FARTHEST * max(measured)


def lack_of_fit(series: Series, law: Callable[[float], float], group_size: int) -> str | None:
    """Why a law fitted to a series says nothing about a group size that was not measured; None if
    it does.

    Beyond the points all of them count; between points, only the two neighbours.

    Args:
        law: the step time in seconds at a group size.
    """
    sizes, last = series.group_sizes, series.points[-1]
    beyond = group_size > sizes[-1]
    neighbours = (
        max((n for n in sizes if n <= group_size), default=sizes[0]),
        min((n for n in sizes if n >= group_size), default=sizes[-1]),
    )
    concerned = [p for p in series.points if beyond or p.group_size in neighbours]
    misses = [
        (miss, point)
        for point in concerned
        if (miss := abs(_log_ratio(law(point.group_size), point.step_seconds.value)))
        > max(math.log1p(LARGE_MISFIT), noise(point))
    ]
    if misses:
        _, worst = max(misses, key=lambda pair: pair[0])
        relative = law(worst.group_size) / worst.step_seconds.value - 1
        return (
            f"the law misses the measured step at {worst.group_size} by "
            f"{units.fixed_percent(relative, signed=True)}: something changes along the group "
            f"sizes that no smooth cost explains; measure {group_size}"
        )
    if beyond and series.scaling == "weak":
        predicted, measured = law(group_size), last.step_seconds.value
        if -_log_ratio(predicted, measured) > max(SHORTFALL, noise(last)):
            return (
                f"the law gives a step at {group_size} that is "
                f"{units.fixed_percent(1 - predicted / measured)} shorter than the one measured at "
                f"{last.group_size}: the last sizes cost more than it knows; measure {group_size}"
            )
    return None


def _log_ratio(law: float, measured: float) -> float:
    """Log of law ÷ measured. A law without a constant part is 0 at one replica."""
    return math.log(law / measured) if law > 0 else -math.inf


def noise(point: Point) -> float:
    """Half the 95 % interval of a measured step, on its logarithm; 0 if not known."""
    interval = point.step_seconds.estimate("s").interval
    return 0.0 if interval is None else math.log(interval[1] / point.step_seconds.value)

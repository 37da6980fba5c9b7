"""Where linear y axes end, so that one wide interval does not press all lines to the ground."""

from __future__ import annotations

from collections.abc import Sequence

from dpbench.analysis.estimate import Estimate
from dpbench.report.charts.curves import Panel, estimates

FARTHEST_END = 1.6
"""Times the highest value: an axis ends there even if intervals go on."""
MARGIN = 1.05
ALIKE = 4.0
"""Panels whose highest values differ by more have y axes of their own."""
CUT_OFF = "intervals that leave the panel are cut off"


def are_alike(found: Sequence[Panel]) -> bool:
    """Tells whether panels with one y axis are all still legible."""
    highest = [highest_value([panel]) for panel in found]
    return max(highest) <= ALIKE * min(highest)


def highest_value(found: Sequence[Panel]) -> float:
    return max(y.value for y in estimates(found))


def top(found: Sequence[Panel], beside: float = 0.0) -> float:
    """Where the axis of these panels ends; `beside` is what else it has room for."""
    end = min(max(map(_end, estimates(found))), FARTHEST_END * highest_value(found))
    return MARGIN * max(end, beside)


def are_cut(found: Sequence[Panel], top: float) -> bool:
    return any(_end(y) > top for y in estimates(found))


def _end(estimate: Estimate) -> float:
    return estimate.value if estimate.high is None else estimate.high

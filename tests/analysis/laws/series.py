"""Scaling series by hand: group sizes and a function of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dpbench.analysis.estimate import LogMean
from dpbench.analysis.laws.series import Point, Series

PUBLISHED = Path(__file__).parents[3] / "results" / "published"
Seconds = Callable[[int], float]


def ring_and_log(n: float) -> float:
    return 0.1 + 0.005 * (n - 1) / n + 0.002 * math.log2(n)


def series(
    seconds: Seconds,
    sizes: Sequence[int] = (1, 2, 4, 8),
    *,
    relative_error: float | None = None,
    **changes: Any,
) -> Series:
    """Of single values; with a relative error, of 5 runs each."""
    points = tuple(
        Point(group_size=n, step_seconds=log_mean(seconds(n), relative_error)) for n in sizes
    )
    values = {"label": "made up", "items_per_step": 32, "batch_size": 32, **changes}
    return Series(points=points, **values)


def log_mean(value: float, relative_error: float | None = None) -> LogMean:
    if relative_error is None:
        return LogMean.of_single(value)
    return LogMean(
        value=value,
        squared_error=relative_error**2,
        degrees_of_freedom=4,
        sample_size=5,
        basis="repetitions",
    )

"""A law through measured step times: what a few group sizes say about others.

Beyond the data, the logarithm of the step time goes on rising: in the first doubling by a third of
the mean rise per doubling that was measured, in each further one by half of that. A step that
became shorter is not expected to become still shorter. Between two sizes it is interpolated.

On published series this errs less than a least-squares fit of latency and bandwidth terms and less
than keeping the last efficiency (`tools/law_errors.py`, docs/scaling.md).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LARGEST_MULTIPLE = 4
"""Largest multiple of the largest measured group size that is predicted."""
GOES_ON = 1 / 3
"""Part of the mean rise per doubling by which the first doubling beyond the data rises."""
DAMPING = 1 / 2
"""Rise of a doubling beyond the data, relative to the doubling before it."""
FLAT = 0.01
"""Rise per doubling that errors are scaled with besides the measured one: flat curves err, too."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Band:
    """Errors of the law on published series, as logarithms relative to the scale of a prediction.

    Ninety percent of them lie between `low` and `high`.
    """

    low: float
    middle: float
    """Shift of a prediction: 0 within a node, the median error across its boundary."""
    high: float
    inside: int
    """How many of the `predictions` lay in a band from all other series."""
    predictions: int


# `python -m tools.law_errors` computes both.
WITHIN_NODE = Band(
    low=-0.1480466941720107, middle=0.0, high=0.548478502299771, inside=201, predictions=224
)
ACROSS_NODES = Band(
    low=-0.13038579716866272,
    middle=0.2181110427208617,
    high=1.3433858113696049,
    inside=59,
    predictions=65,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """The logarithm of a step time, as a weighted sum of those of the measured group sizes."""

    log_seconds: float
    weights: tuple[float, ...]
    """One weight for each measured group size; their sum is 1."""
    scale: float
    """Scale of its error: the steeper the curve and the farther away, the larger."""

    def noise(self, deviations: Sequence[float]) -> float:
        """How far it may be off because the measured logarithms may be, independently."""
        return math.hypot(*(w * d for w, d in zip(self.weights, deviations, strict=True)))


def continued(sizes: Sequence[int], seconds: Sequence[float], group_size: int) -> Prediction:
    """The step time at a group size from those at two others or more, in ascending order.

    `group_size` is at least the smallest of `sizes`; `seconds` may have any unit.
    """
    logs = np.log(seconds)
    doublings = math.log2(sizes[-1] / sizes[0])
    rise = max(0.0, float(logs[-1] - logs[0]) / doublings)
    weights = np.zeros(len(sizes))
    if group_size <= sizes[-1]:
        after = max(1, bisect_left(sizes, group_size))
        before = after - 1
        share = math.log(group_size / sizes[before]) / math.log(sizes[after] / sizes[before])
        weights[before], weights[after] = 1 - share, share
    else:
        weights[-1] = 1
        if rise > 0:
            octaves = math.log2(group_size / sizes[-1])
            whole = GOES_ON * (1 - DAMPING**octaves) / (1 - DAMPING) / doublings
            weights[-1] += whole
            weights[0] -= whole
    nearest = min(abs(math.log2(group_size / size)) for size in sizes)
    return Prediction(
        log_seconds=float(weights @ logs),
        weights=tuple(weights.tolist()),
        scale=error_scale(rise, nearest),
    )


def error_scale(rise: float, doublings: float) -> float:
    """Scale of the error of a logarithm so many doublings away from the data, where it rises by
    `rise` per doubling: on published series it grows with the root of both."""
    return math.sqrt((FLAT + rise) * doublings)


def refusal(sizes: Sequence[int], n: int) -> str | None:
    """Why the law says nothing about n replicas; None if it does."""
    if n < sizes[0]:
        return f"below the smallest measured group size ({sizes[0]})"
    if n > LARGEST_MULTIPLE * sizes[-1]:
        return (
            f"more than {LARGEST_MULTIPLE} × the largest measured group size ({sizes[-1]}); "
            "simulate larger groups with --topology"
        )
    return None


def crosses(sizes: Sequence[int], n: int, per_node: int | None) -> bool:
    """Whether n replicas need a second node, and all measured groups fit one."""
    return per_node is not None and sizes[-1] <= per_node < n

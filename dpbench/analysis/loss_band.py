"""The loss of a configuration over its repetitions: the median curve and the range around it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpbench.analysis.loss_curve import Floats, LossCurve


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LossBand:
    """Arrays of shape (points,), along whatever the curves were laid over each other by."""

    at: Floats
    median: Floats
    low: Floats
    """The smallest over repetitions."""
    high: Floats
    repetitions: int


def loss_band(curves: Sequence[LossCurve], along: Sequence[Floats]) -> LossBand | None:
    """Lays the curves of repetitions over each other along their steps, samples or seconds.

    Where they have no points in common, as along seconds, each is interpolated linearly between
    its own; the band covers the stretch that all of them reach. None where there is no such one.
    """
    first = along[0]
    if all(np.array_equal(first, other) for other in along):
        at, values = first, np.stack([curve.losses for curve in curves])
    else:
        start, end = max(own[0] for own in along), min(own[-1] for own in along)
        if start >= end:
            return None
        at = np.linspace(start, end, max(map(len, along)))
        pairs = zip(along, curves, strict=True)
        values = np.stack([np.interp(at, own, curve.losses) for own, curve in pairs])
    return LossBand(
        at=at,
        median=np.median(values, axis=0),
        low=values.min(axis=0),
        high=values.max(axis=0),
        repetitions=len(curves),
    )

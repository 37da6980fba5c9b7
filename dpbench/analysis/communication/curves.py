"""Time of a collective at any size, from the sizes that were measured.

Two parameters, α + s/B, do not fit a collective: protocols change with the size, and the fit is
wrong by up to a quarter. So between measured sizes the curve is interpolated (PCHIP on logarithms,
which adds no wiggles); above them it continues as α + s/B of the last two octaves.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from scipy.interpolate import PchipInterpolator
from scipy.optimize import nnls

from dpbench.analysis.communication.timings import (
    ExchangeCost,
    MeasuredCollective,
    SizeCost,
    measured,
)
from dpbench.records.collectives import Collective, CollectiveRecord

TAIL = 4
"""Sizes from the largest ÷ this number on determine how the curve continues above it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OverlapPoint:
    """How much a collective of some size and a computation slow each other down."""

    nbytes: int
    lost_share: float
    """Share of a rank's computing that is lost while the collective is running: from 0, perfect
    overlap, to 1, none; as measured, so noise can put it outside this range."""
    stretch: float
    """Time of the collective while the rank computes ÷ the curve's time alone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectiveCurve:
    """One collective on one backend and group size, at two sizes or more.

    Raises ValueError for sizes that do not rise and times that are not positive.
    """

    collective: Collective
    backend: str
    group_size: int
    sizes_bytes: tuple[int, ...]
    seconds: tuple[float, ...]
    """Seconds of one call; see `SizeCost`."""
    overlaps: tuple[OverlapPoint, ...] = ()
    nodes: int = 1
    """Number of hosts that the ranks ran on."""
    dtype: str = "float32"
    in_step: CollectiveCurve | None = None
    """The same collective as in a step, with cold caches; None if not measured."""
    fill_seconds: tuple[float, ...] = ()
    """Seconds to copy gradients into a bucket of each size, before the call; empty if not
    measured."""

    def __post_init__(self) -> None:
        if len(self.sizes_bytes) < 2 or len(self.sizes_bytes) != len(self.seconds):
            raise ValueError(f"expected times of two sizes or more, got {len(self.seconds)}")
        if any(b <= a for a, b in zip((0, *self.sizes_bytes), self.sizes_bytes, strict=False)):
            raise ValueError(f"expected rising positive sizes, got {self.sizes_bytes}")
        if not all(math.isfinite(t) and t > 0 for t in self.seconds):
            raise ValueError(f"expected positive times, got {self.seconds}")

    def covers(self, nbytes: float) -> bool:
        """Whether a size lies within the measured range."""
        return self.sizes_bytes[0] <= nbytes <= self.sizes_bytes[-1]

    def seconds_at(self, nbytes: float) -> float:
        """Seconds of one call; below the smallest size that size's; 0 if there is nothing to
        send."""
        if nbytes <= 0:
            return 0.0
        last = self.sizes_bytes[-1]
        if nbytes > last:
            return self.seconds[-1] + (nbytes - last) / self.bytes_per_second
        if nbytes <= self.sizes_bytes[0]:
            return self.seconds[0]
        return math.exp(_interpolator(self.sizes_bytes, self.seconds)(math.log(nbytes)).item())

    def fill_seconds_at(self, nbytes: float) -> float:
        """Seconds to fill a bucket; in proportion to the size outside the measured ones; 0 if not
        measured."""
        if nbytes <= 0 or not self.fill_seconds:
            return 0.0
        nearest = min(max(nbytes, self.sizes_bytes[0]), self.sizes_bytes[-1])
        filled = float(np.interp(nearest, self.sizes_bytes, self.fill_seconds))
        return filled * nbytes / nearest

    @property
    def latency_seconds(self) -> float:
        """Time of the smallest message."""
        return self.seconds[0]

    @property
    def bytes_per_second(self) -> float:
        """Bandwidth above the largest size: B of α + s/B, both positive, over the tail."""
        return 1 / _seconds_per_byte(self.sizes_bytes, self.seconds)

    def lost_share_at(self, nbytes: float) -> float:
        """Lost share of computing at a size; 0 if not measured."""
        return _between([(o.nbytes, o.lost_share) for o in self.overlaps], nbytes, missing=0.0)

    def stretch_at(self, nbytes: float) -> float:
        """Stretch at a size; 1 if not measured."""
        return _between([(o.nbytes, o.stretch) for o in self.overlaps], nbytes, missing=1.0)


def curves(records: Iterable[CollectiveRecord]) -> tuple[CollectiveCurve, ...]:
    """Curves of all configurations measured at two sizes or more, in the order they ran."""
    return tuple(_curve(one) for one in measured(records) if len(one.sizes) > 1)


def _curve(one: MeasuredCollective) -> CollectiveCurve:
    alone = _of_sizes(one, one.sizes)
    if len(one.exchanges) < 2:
        return alone
    filled = tuple(cost.copy_seconds.value for cost in one.exchanges)
    return replace(alone, in_step=replace(_of_sizes(one, one.exchanges), fill_seconds=filled))


def _of_sizes(one: MeasuredCollective, sizes: Sequence[SizeCost | ExchangeCost]) -> CollectiveCurve:
    """The curve over these sizes. A step's curve has a stretch relative to itself, so that both
    take equally long beside computing."""
    curve = CollectiveCurve(
        collective=one.spec.collective,
        backend=one.spec.backend,
        group_size=one.spec.group_size,
        sizes_bytes=tuple(size.nbytes for size in sizes),
        seconds=tuple(size.seconds.value for size in sizes),
        nodes=one.nodes,
        dtype=one.spec.dtype,
    )
    overlaps = tuple(
        OverlapPoint(
            nbytes=overlap.nbytes,
            lost_share=overlap.lost_share.value,
            stretch=overlap.seconds.value / curve.seconds_at(overlap.nbytes),
        )
        for overlap in one.overlaps
    )
    return replace(curve, overlaps=overlaps)


@cache
def _interpolator(sizes: tuple[int, ...], seconds: tuple[float, ...]) -> PchipInterpolator:
    return PchipInterpolator(np.log(sizes), np.log(seconds))


@cache
def _seconds_per_byte(sizes: tuple[int, ...], seconds: tuple[float, ...]) -> float:
    """Slope by least squares of relative residuals.

    If times do not grow with the size, the whole time of the largest message is attributed to its
    bytes.
    """
    first = min(len(sizes) - 2, next(i for i, s in enumerate(sizes) if TAIL * s >= sizes[-1]))
    tail, times = np.array(sizes[first:], float), np.array(seconds[first:])
    rows = np.column_stack([1 / times, tail / times])
    _, slope = nnls(rows, np.ones_like(times))[0]
    return float(slope) if slope > 0 else seconds[-1] / sizes[-1]


def _between(points: Sequence[tuple[int, float]], nbytes: float, *, missing: float) -> float:
    """Interpolation, linear in the logarithm of the size; the nearest value outside."""
    if not points:
        return missing
    sizes, values = zip(*sorted(points), strict=True)
    return float(np.interp(math.log(max(nbytes, 1.0)), np.log(sizes), values))

"""Seconds of a collective for any message size, from the sizes that were measured.

Two parameters, α + s/B, do not fit a collective: protocols change with the size, and the fit is
wrong by up to a quarter. So between measured sizes the curve is interpolated (PCHIP on logarithms,
which adds no wiggles); only above them it goes on as α + s/B of the last two octaves.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from dpbench.analysis.communication.timings import (
    ExchangeCost,
    MeasuredCollective,
    SizeCost,
    measured,
)
from dpbench.analysis.numerics import MonotoneCurve, nonnegative_least_squares
from dpbench.collectives import Collective, CollectiveRecord

TAIL = 4
"""Sizes from a quarter of the largest on tell how the curve goes on above it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Overlap:
    """What a collective of some size and a computation cost each other."""

    nbytes: int
    lost_share: float
    """Part of a rank's computing that is lost while the collective is under way: from 0, perfect
    overlap, to 1, none; as measured, so that noise can leave it outside."""
    stretch: float
    """The collective while the rank computes ÷ the curve's time alone."""


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
    """Of one call; how they come from ranks, samples and repetitions: see `timings`."""
    overlaps: tuple[Overlap, ...] = ()
    nodes: int = 1
    """Hosts that the ranks ran on."""
    dtype: str = "float32"
    in_step: CollectiveCurve | None = None
    """The same as a step sees it, where caches are cold; None if it was not measured."""
    fill_seconds: tuple[float, ...] = ()
    """Of copying gradients into a bucket of each size, before the call; empty if not measured."""

    def __post_init__(self) -> None:
        if len(self.sizes_bytes) < 2 or len(self.sizes_bytes) != len(self.seconds):
            raise ValueError(f"expected times of two sizes or more, got {len(self.seconds)}")
        if any(b <= a for a, b in zip((0, *self.sizes_bytes), self.sizes_bytes, strict=False)):
            raise ValueError(f"expected rising positive sizes, got {self.sizes_bytes}")
        if not all(math.isfinite(t) and t > 0 for t in self.seconds):
            raise ValueError(f"expected positive times, got {self.seconds}")

    def covers(self, nbytes: float) -> bool:
        """Tells whether a size lies between measured ones."""
        return self.sizes_bytes[0] <= nbytes <= self.sizes_bytes[-1]

    def seconds_at(self, nbytes: float) -> float:
        """Of one call; the smallest size's below it; 0 where there is nothing to send."""
        if nbytes <= 0:
            return 0.0
        last = self.sizes_bytes[-1]
        if nbytes > last:
            return self.seconds[-1] + (nbytes - last) / self.bytes_per_second
        if nbytes <= self.sizes_bytes[0]:
            return self.seconds[0]
        return math.exp(_interpolator(self.sizes_bytes, self.seconds)(math.log(nbytes)).item())

    def fill_seconds_at(self, nbytes: float) -> float:
        """0 if it was not measured; in proportion to the size outside of the measured ones."""
        if nbytes <= 0 or not self.fill_seconds:
            return 0.0
        nearest = min(max(nbytes, self.sizes_bytes[0]), self.sizes_bytes[-1])
        filled = float(np.interp(nearest, self.sizes_bytes, self.fill_seconds))
        return filled * nbytes / nearest

    @property
    def latency_seconds(self) -> float:
        """What the smallest message takes."""
        return self.seconds[0]

    @property
    def bytes_per_second(self) -> float:
        """Of each byte more above the largest size: B of α + s/B, both positive, over the tail."""
        return 1 / _seconds_per_byte(self.sizes_bytes, self.seconds)

    def lost_share_at(self, nbytes: float) -> float:
        """0 if it was not measured."""
        return _between([(o.nbytes, o.lost_share) for o in self.overlaps], nbytes, missing=0.0)

    def stretch_at(self, nbytes: float) -> float:
        """1 if it was not measured."""
        return _between([(o.nbytes, o.stretch) for o in self.overlaps], nbytes, missing=1.0)


def curves(records: Iterable[CollectiveRecord]) -> tuple[CollectiveCurve, ...]:
    """Of every configuration that was measured at two sizes or more, in the order they ran."""
    return tuple(_curve(one) for one in measured(records) if len(one.sizes) > 1)


def find(
    curves: Sequence[CollectiveCurve],
    *,
    collective: Collective = "all_reduce",
    backend: str,
    group_size: int,
    dtype: str = "float32",
) -> CollectiveCurve | None:
    """The last that was measured, if there are several."""
    wanted = (collective, backend, group_size, dtype)
    for curve in reversed(curves):
        if (curve.collective, curve.backend, curve.group_size, curve.dtype) == wanted:
            return curve
    return None


def _curve(one: MeasuredCollective) -> CollectiveCurve:
    alone = _of_sizes(one, one.sizes)
    if len(one.exchanges) < 2:
        return alone
    filled = tuple(cost.copy_seconds.value for cost in one.exchanges)
    return replace(alone, in_step=replace(_of_sizes(one, one.exchanges), fill_seconds=filled))


def _of_sizes(one: MeasuredCollective, sizes: Sequence[SizeCost | ExchangeCost]) -> CollectiveCurve:
    """Its stretch is relative to itself, so that both curves take as long beside computing."""
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
        Overlap(
            nbytes=overlap.nbytes,
            lost_share=overlap.lost_share.value,
            stretch=overlap.seconds.value / curve.seconds_at(overlap.nbytes),
        )
        for overlap in one.overlaps
    )
    return replace(curve, overlaps=overlaps)


@cache
def _interpolator(sizes: tuple[int, ...], seconds: tuple[float, ...]) -> MonotoneCurve:
    return MonotoneCurve(np.log(sizes), np.log(seconds))


@cache
def _seconds_per_byte(sizes: tuple[int, ...], seconds: tuple[float, ...]) -> float:
    """Least squares of relative residuals.

    Where times do not grow with the size, all of the largest one's time counts as its bytes'.
    """
    first = min(len(sizes) - 2, next(i for i, s in enumerate(sizes) if TAIL * s >= sizes[-1]))
    tail, times = np.array(sizes[first:], float), np.array(seconds[first:])
    rows = np.column_stack([1 / times, tail / times])
    _, slope = nonnegative_least_squares(rows, np.ones_like(times))
    return float(slope) if slope > 0 else seconds[-1] / sizes[-1]


def _between(points: Sequence[tuple[int, float]], nbytes: float, *, missing: float) -> float:
    """Linear in the logarithm of the size; the nearest value outside."""
    if not points:
        return missing
    sizes, values = zip(*sorted(points), strict=True)
    return float(np.interp(math.log(max(nbytes, 1.0)), np.log(sizes), values))

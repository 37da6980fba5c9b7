"""Measurements of collectives, combined over ranks, samples and repetitions; and their curves.

The seconds of a call are, per sample, those of the slowest rank, because all ranks wait for it; per
repetition, the median over samples; overall, the geometric mean over repetitions. The median is
used because occasional losses of a core for milliseconds affect computing and communication alike:
a step's stragglers account for them, and with a mean one such sample in twenty would double the
cost of every small message.

Two parameters, α + s/B, do not fit a collective: protocols change with the size, and the fit is
wrong by up to a quarter. So between measured sizes the curve is interpolated (PCHIP on logarithms,
which adds no wiggles); above them it continues as α + s/B of the last two octaves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import median
from typing import TypeVar

import numpy as np

from dpbench.analysis import estimate
from dpbench.analysis.communication.cost_models import algorithm_bandwidth, bus_factor
from dpbench.analysis.estimate import Estimate, LogMean
from dpbench.analysis.numerics import MonotoneCurve, nonnegative_least_squares
from dpbench.collectives import (
    Collective,
    CollectiveRecord,
    CollectiveSpec,
    ExchangeTiming,
    OverlapTiming,
    RankCollectives,
    SizeTiming,
)
from dpbench.records import Status
from dpbench.units import DTYPE_BYTES

T = TypeVar("T", SizeTiming, OverlapTiming, ExchangeTiming)


@dataclass(frozen=True, kw_only=True, slots=True)
class SizeCost:
    """Results for one message size."""

    nbytes: int
    count: int
    """Number of elements of the message."""
    seconds: Estimate
    algorithm_bandwidth: Estimate
    """Bytes per second."""
    bus_bandwidth: Estimate
    copy_bandwidth: Estimate | None
    """Bytes per second of copies by all ranks at once, on the slowest one."""
    copy_share: Estimate | None
    """algorithm_bandwidth ÷ copy_bandwidth."""
    samples: int
    """Number of timed samples, over all repetitions."""
    largest_error: float | None = None
    """Largest error over all ranks and repetitions, relative to exact arithmetic; None in old
    records."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OverlapCost:
    """How much a collective and a computation slow each other down; see `overlap_of`."""

    nbytes: int
    seconds: Estimate
    """Seconds of the collective while the ranks compute."""
    lost_share: Estimate
    stretch: Estimate


@dataclass(frozen=True, kw_only=True, slots=True)
class ExchangeCost:
    """Exchange of a gradient bucket as in a step: caches are cold, and ranks arrive one after the
    other.

    Each sample counts the rank that waited least: the last to arrive. The others' waiting is a cost
    of stragglers, not of the collective.
    """

    nbytes: int
    seconds: Estimate
    """Seconds from the filling of the last rank's bucket to the end of the collective."""
    copy_seconds: Estimate
    """Seconds to fill the bucket, on the slowest rank."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredCollective:
    """All repetitions of one collective on one backend and group size."""

    spec: CollectiveSpec
    """Specification without its repetition."""
    repetitions: int
    """Number of completed repetitions."""
    nodes: int
    """Number of hosts that its ranks ran on; 0 if none completed."""
    sizes: tuple[SizeCost, ...]
    """Sizes in rising order; empty if no repetition completed."""
    overlaps: tuple[OverlapCost, ...]
    exchanges: tuple[ExchangeCost, ...]
    failures: tuple[tuple[Status, str], ...]
    """Status and reason of each repetition that did not complete."""
    tried_again_after: tuple[str, ...]
    """Reasons why first tries were ended from outside."""
    environment_ids: tuple[str, ...]


def measured(records: Iterable[CollectiveRecord]) -> tuple[MeasuredCollective, ...]:
    """One per configuration, in the order they were first run; if run again, the last counts."""
    groups: dict[CollectiveSpec, dict[int, CollectiveRecord]] = {}
    for record in records:
        spec = record.collective
        groups.setdefault(spec.configuration, {})[spec.repetition] = record
    return tuple(_measured(spec, [*group.values()]) for spec, group in groups.items())


def _measured(spec: CollectiveSpec, records: Sequence[CollectiveRecord]) -> MeasuredCollective:
    done = [record for record in records if record.status is Status.COMPLETED and record.ranks]
    return MeasuredCollective(
        spec=spec,
        repetitions=len(done),
        nodes=max((len({rank.host for rank in record.ranks}) for record in done), default=0),
        sizes=tuple(
            size for nbytes in spec.sizes_bytes if (size := _size_cost(spec, nbytes, done))
        ),
        overlaps=tuple(
            cost for nbytes in spec.overlap_sizes_bytes if (cost := _overlap_cost(nbytes, done))
        ),
        exchanges=tuple(
            bucket
            for nbytes in spec.exchange_sizes_bytes
            if (bucket := _exchange_cost(nbytes, done))
        ),
        failures=tuple((r.status, r.reason or "") for r in records if r not in done),
        tried_again_after=tuple(r.tried_again_after for r in records if r.tried_again_after),
        environment_ids=tuple(dict.fromkeys(record.environment_id for record in records)),
    )


def _size_cost(
    spec: CollectiveSpec, nbytes: int, records: Sequence[CollectiveRecord]
) -> SizeCost | None:
    """Cost of a size; None if no repetition has it."""
    calls = _slowest(_on_all_ranks(records, lambda rank: rank.timings, nbytes))
    copies = _slowest(_on_all_ranks(records, lambda rank: rank.copies, nbytes))
    if not calls:
        return None
    took = LogMean.of_runs([median(samples) for samples in calls])
    copied = LogMean.of_runs([median(samples) for samples in copies]) if copies else None
    algorithm = _bandwidth(nbytes, took)
    return SizeCost(
        nbytes=nbytes,
        count=nbytes // DTYPE_BYTES[spec.dtype],
        seconds=took.estimate("s"),
        algorithm_bandwidth=algorithm,
        bus_bandwidth=algorithm.scaled(bus_factor(spec.collective, spec.group_size), unit="B/s"),
        copy_bandwidth=None if copied is None else _bandwidth(nbytes, copied),
        copy_share=None if copied is None else estimate.ratio(copied, took),
        samples=sum(map(len, calls)),
        largest_error=_largest_error(records, nbytes),
    )


def _largest_error(records: Sequence[CollectiveRecord], nbytes: int) -> float | None:
    timings = [t for r in records for rank in r.ranks for t in rank.timings if t.nbytes == nbytes]
    errors = [timing.largest_error for timing in timings if timing.largest_error is not None]
    return max(errors, default=None)


def _bandwidth(nbytes: int, seconds: LogMean) -> Estimate:
    """Bandwidth from seconds; an inverse has the same squared error of its logarithm."""
    return replace(seconds, value=algorithm_bandwidth(nbytes, seconds.value)).estimate("B/s")


def _on_all_ranks(
    records: Iterable[CollectiveRecord],
    held: Callable[[RankCollectives], Sequence[T]],
    nbytes: int,
) -> list[list[T]]:
    """Values of every rank, for each record whose ranks all have the size."""
    found = []
    for record in records:
        own = [t for rank in record.ranks for t in held(rank) if t.nbytes == nbytes]
        if len(own) == len(record.ranks):
            found.append(own)
    return found


def _slowest(records: Iterable[Sequence[SizeTiming]]) -> list[list[float]]:
    """Seconds of the slowest rank for each sample, per record."""
    return [
        [max(sample) for sample in zip(*(one.seconds for one in ranks), strict=True)]
        for ranks in records
    ]


def _exchange_cost(nbytes: int, records: Sequence[CollectiveRecord]) -> ExchangeCost | None:
    taken, copied = [], []
    for own in _on_all_ranks(records, lambda rank: rank.exchanges, nbytes):
        taken.append(median(map(min, zip(*(e.collective_seconds for e in own), strict=True))))
        copied.append(median(map(max, zip(*(e.copy_seconds for e in own), strict=True))))
    if not taken:
        return None
    return ExchangeCost(
        nbytes=nbytes,
        seconds=LogMean.of_runs(taken).estimate("s"),
        copy_seconds=LogMean.of_runs(copied).estimate("s"),
    )


def _overlap_cost(nbytes: int, records: Sequence[CollectiveRecord]) -> OverlapCost | None:
    runs = [overlap_of(own) for own in _on_all_ranks(records, lambda r: r.overlaps, nbytes)]
    if not runs:
        return None
    seconds, lost, stretch = zip(*runs, strict=True)
    return OverlapCost(
        nbytes=nbytes,
        seconds=LogMean.of_runs(seconds).estimate("s"),
        lost_share=estimate.mean(lost, unit="of the computing"),
        stretch=LogMean.of_runs(stretch).estimate("×"),
    )


def overlap_of(ranks: Sequence[OverlapTiming]) -> tuple[float, float, float]:
    """(seconds, lost share, stretch) of one repetition, from medians over the samples of a rank.

    seconds: of the collective while the ranks compute; stretch: those ÷ the collective's alone.
    lost share = (computation with the collective - alone) ÷ the time that both are running: 0 if
    they do not disturb each other, 1 if the ranks compute nothing meanwhile. All are computed from
    sums over ranks, as a collective may end much later on one rank than on another.
    """
    alone = sum(median(rank.compute_seconds) for rank in ranks)
    together = [median(rank.compute_with_collective_seconds) for rank in ranks]
    stretched = [median(rank.collective_with_compute_seconds) for rank in ranks]
    lost = (sum(together) - alone) / sum(map(min, zip(together, stretched, strict=True)))
    plain = sum(median(rank.collective_seconds) for rank in ranks)
    return sum(stretched) / len(ranks), lost, sum(stretched) / plain


TAIL = 4
"""Sizes from the largest ÷ this number on determine how the curve continues above it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Overlap:
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
    overlaps: tuple[Overlap, ...] = ()
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
    """Slope by least squares of relative residuals.

    If times do not grow with the size, the whole time of the largest message is attributed to its
    bytes.
    """
    first = min(len(sizes) - 2, next(i for i, s in enumerate(sizes) if TAIL * s >= sizes[-1]))
    tail, times = np.array(sizes[first:], float), np.array(seconds[first:])
    rows = np.column_stack([1 / times, tail / times])
    _, slope = nonnegative_least_squares(rows, np.ones_like(times))
    return float(slope) if slope > 0 else seconds[-1] / sizes[-1]


def _between(points: Sequence[tuple[int, float]], nbytes: float, *, missing: float) -> float:
    """Interpolation, linear in the logarithm of the size; the nearest value outside."""
    if not points:
        return missing
    sizes, values = zip(*sorted(points), strict=True)
    return float(np.interp(math.log(max(nbytes, 1.0)), np.log(sizes), values))

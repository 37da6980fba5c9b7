"""Measurements of collectives, combined over ranks, samples and repetitions.

The seconds of a call are, per sample, those of the slowest rank, because all ranks wait for it; per
repetition, the median over samples; overall, the geometric mean over repetitions. The median is
used because occasional losses of a core for milliseconds affect computing and communication alike:
a step's stragglers account for them, and with a mean one such sample in twenty would double the
cost of every small message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TypeVar

from dpbench.analysis import estimate
from dpbench.analysis.communication.bandwidth import algorithm_bandwidth, bus_factor
from dpbench.analysis.estimate import Estimate, LogMean
from dpbench.records.collectives import (
    CollectiveRecord,
    CollectiveSpec,
    ExchangeTiming,
    OverlapTiming,
    RankCollectives,
    SizeTiming,
)
from dpbench.records.trial import Status
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
    """How much a collective and a computation slow each other down; see `repetition_overlap`."""

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
    runs = [repetition_overlap(own) for own in _on_all_ranks(records, lambda r: r.overlaps, nbytes)]
    if not runs:
        return None
    seconds, lost, stretch = zip(*runs, strict=True)
    return OverlapCost(
        nbytes=nbytes,
        seconds=LogMean.of_runs(seconds).estimate("s"),
        lost_share=estimate.mean(lost, unit="of the computing"),
        stretch=LogMean.of_runs(stretch).estimate("×"),
    )


def repetition_overlap(ranks: Sequence[OverlapTiming]) -> tuple[float, float, float]:
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

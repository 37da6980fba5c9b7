"""Measurements of collectives, combined over ranks, samples and repetitions.

The seconds of a call are, per sample, those of the slowest rank, because all ranks wait for it; per
repetition, the median over samples; overall, the geometric mean over repetitions. The median is
used because occasional losses of a core for milliseconds affect computing and communication alike:
a step's stragglers account for them, and with a mean one such sample in twenty would double the
cost of every small message.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from dpbench.analysis.estimate import Estimate, geometric_mean
from dpbench.analysis.metric import Metric
from dpbench.records.collectives import CollectiveRecord, CollectiveSpec
from dpbench.records.trial import Status


@dataclass(frozen=True, kw_only=True, slots=True)
class SizeCost:
    """Results for one message size; SIZE_METRICS has the meaning of each."""

    nbytes: int
    samples: int
    seconds: Estimate
    algorithm_bytes_per_second: Estimate
    bus_bytes_per_second: Estimate
    largest_error: float

    def __getitem__(self, key: str) -> Any:
        """The value of a metric, as a row of trials has it."""
        return getattr(self, key)


SIZE_METRICS = (
    Metric(
        key="nbytes",
        kind="integer",
        meaning="Size of the message in bytes, as nccl-tests counts it: of all_gather and "
        "reduce_scatter the whole, of which each rank holds its part.",
        header="Size (B)",
        style="grouped",
    ),
    Metric(
        key="samples",
        kind="integer",
        meaning="Timed samples behind it, all repetitions together.",
    ),
    Metric(
        key="seconds",
        meaning="Time of one call on the slowest rank: the median over samples, the geometric mean "
        "over repetitions.",
        has_interval=True,
        header="Time",
        style="time",
    ),
    Metric(
        key="algorithm_bytes_per_second",
        meaning="Size ÷ time (algbw); tables show 10⁹ bytes per second.",
        has_interval=True,
        header="algbw (GB/s)",
        style="gigabytes alone",
    ),
    Metric(
        key="bus_bytes_per_second",
        meaning="algbw × the factor that makes it the load of each link of a ring, as nccl-tests "
        "defines it (busbw); tables show 10⁹ bytes per second.",
        has_interval=True,
        header="busbw (GB/s)",
        style="gigabytes",
    ),
    Metric(
        key="largest_error",
        meaning="Largest error of a result on values that have to be rounded, over all ranks, "
        "relative to exact arithmetic; 0 where values are only moved.",
        header="Error",
        style="error",
    ),
)
"""Metrics of one message size."""


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
    failures: tuple[tuple[Status, str], ...]
    """Status and reason of each repetition that did not complete."""
    tried_again_after: tuple[str, ...]
    """Reasons why first tries were ended from outside."""


def bus_factor(collective: str, group_size: int) -> float:
    """busbw ÷ algbw as nccl-tests defines it (doc/PERFORMANCE.md).

    busbw is what each link would carry if the ranks passed the bytes round a ring, so it does not
    depend on the group size. It is not what the wires carry where trees are used, or switches that
    add up on the way. A single rank has nobody to talk to.
    """
    part = (group_size - 1) / group_size
    return {"all_reduce": 2 * part, "broadcast": 1.0}.get(collective, part)


def measured(records: Iterable[CollectiveRecord]) -> tuple[MeasuredCollective, ...]:
    """One per configuration, in the order they were run."""
    groups: dict[CollectiveSpec, list[CollectiveRecord]] = {}
    for record in records:
        groups.setdefault(record.collective.configuration, []).append(record)
    found = []
    for spec, group in groups.items():
        done = [record for record in group if record.status is Status.COMPLETED and record.ranks]
        found.append(
            MeasuredCollective(
                spec=spec,
                repetitions=len(done),
                nodes=max((len({rank.host for rank in one.ranks}) for one in done), default=0),
                sizes=tuple(_size_cost(spec, n, done) for n in spec.sizes_bytes) if done else (),
                failures=tuple((one.status, one.reason or "") for one in group if one not in done),
                tried_again_after=tuple(
                    one.tried_again_after for one in group if one.tried_again_after
                ),
            )
        )
    return tuple(found)


def _size_cost(spec: CollectiveSpec, nbytes: int, records: Sequence[CollectiveRecord]) -> SizeCost:
    """Cost of a size, from completed repetitions."""
    calls = [
        [one for rank in record.ranks for one in rank.timings if one.nbytes == nbytes]
        for record in records
    ]
    # Every sample took as long as on its slowest rank.
    samples = [list(map(max, zip(*(one.seconds for one in ranks), strict=True))) for ranks in calls]
    took = geometric_mean([median(one) for one in samples], unit="s")
    algorithm = took.mapped(lambda seconds: nbytes / seconds, unit="B/s")
    factor = bus_factor(spec.collective, spec.group_size)
    return SizeCost(
        nbytes=nbytes,
        samples=sum(map(len, samples)),
        seconds=took,
        algorithm_bytes_per_second=algorithm,
        bus_bytes_per_second=algorithm.scaled(factor, unit="B/s"),
        largest_error=max(one.largest_error for ranks in calls for one in ranks),
    )

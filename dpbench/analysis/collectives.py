"""Measurements of collectives, combined over ranks, samples and repetitions.

The seconds of a call are, per sample, those of the slowest rank, because all ranks wait for it; per
repetition, the median over samples; overall, the geometric mean over repetitions. The median is
used because occasional losses of a core for milliseconds affect computing and communication alike:
a step's stragglers account for them, and with a mean one such sample in twenty would double the
cost of every small message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter, truediv
from statistics import median
from typing import TYPE_CHECKING, ClassVar, Self

from dpbench.analysis import formatting
from dpbench.analysis.estimate import Estimate, geometric_mean
from dpbench.analysis.metrics import ALWAYS, DATA_ONLY, Metric
from dpbench.records.collectives import CollectiveRecord
from dpbench.records.environment import Environment
from dpbench.records.trial import Status
from dpbench.specs.collective import CollectiveSpec
from dpbench.specs.command_line import CommandLine

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectiveRow:
    """One message size of a collective on one backend and group size; `COLLECTIVE_METRICS` explains
    the numbers. A collective of which no repetition completed has one row, without numbers."""

    spec: CollectiveSpec
    """The specification of its first repetition."""
    repetitions: int
    status: Status
    """Status of the first repetition that did not complete, if there is one."""
    reason: str | None
    nbytes: int | None = None
    seconds: Estimate | None = None
    algorithm_bytes_per_second: Estimate | None = None
    bus_bytes_per_second: Estimate | None = None
    largest_error: float | None = None

    @property
    def backend(self) -> str:
        return self.spec.backend

    @property
    def group_size(self) -> int:
        return self.spec.group_size


@dataclass(frozen=True, kw_only=True, slots=True)
class Collectives:
    """What a results folder of `dpbench comm` holds, with the members by which tables, charts and
    pages read an `Analysis`."""

    name: str
    rows: tuple[CollectiveRow, ...]
    command: CommandLine
    """The command that measured them."""
    records: tuple[CollectiveRecord, ...]
    """All records, also those of rows that are not selected."""
    environments: Mapping[str, Environment]
    """The environments of all records, by their identifiers."""
    warnings: tuple[str, ...] = ()
    """Warnings of what could not be read."""
    work: ClassVar[str] = ""

    @property
    def by_work(self) -> dict[str, Self]:
        """All of them together, as they have no models."""
        return {self.work: self}

    @property
    def frame(self) -> pd.DataFrame:
        """One line per row, with the ends of intervals."""
        from dpbench.analysis.frames import collective_frame

        return collective_frame(self.rows)

    def select(self, keeps: Callable[[CollectiveRow], bool]) -> Self:
        """The same with the rows alone that it `keeps`."""
        return replace(self, rows=tuple(filter(keeps, self.rows)))


COLLECTIVE_METRICS: tuple[Metric[CollectiveRow], ...] = (
    Metric("collective", attrgetter("spec.collective"), "text", importance=ALWAYS),
    Metric("backend", attrgetter("spec.backend"), "text", importance=ALWAYS),
    Metric(
        "group_size",
        attrgetter("spec.group_size"),
        "integer",
        meaning="Processes that take part.",
        header="Ranks",
        importance=ALWAYS,
    ),
    Metric(
        "nbytes",
        attrgetter("nbytes"),
        "integer",
        meaning="Size of the message in bytes, as nccl-tests counts it: of all_gather and "
        "reduce_scatter the whole, of which each rank holds its part.",
        header="Size (B)",
        write="{:,}".format,
        importance=ALWAYS,
    ),
    Metric(
        "seconds",
        attrgetter("seconds"),
        "estimate",
        meaning="One call on the slowest rank, the median over samples and the geometric mean over "
        "repetitions.",
        header="Time",
        write=formatting.unless_too_noisy(formatting.time_text),
        importance=ALWAYS,
    ),
    Metric(
        "largest_error",
        attrgetter("largest_error"),
        meaning="Largest error of a result on values that have to be rounded, over all ranks, "
        "relative to exact arithmetic; 0 where values are only moved.",
        header="Error",
        write=lambda error: f"{error:.0e}" if error else "0",
        importance=ALWAYS,
    ),
    Metric(
        "algorithm_bytes_per_second",
        attrgetter("algorithm_bytes_per_second"),
        "estimate",
        meaning="Size ÷ time; GB is 10⁹ bytes.",
        header="algbw (GB/s)",
        write=formatting.gigabytes_alone,
        importance=1,
    ),
    Metric(
        "bus_bytes_per_second",
        attrgetter("bus_bytes_per_second"),
        "estimate",
        meaning="algbw × the factor of nccl-tests, such as 2 (ranks - 1) ÷ ranks for all_reduce, "
        "which makes it the load of each link of a ring.",
        header="busbw (GB/s)",
        write=formatting.gigabytes,
        importance=3,
    ),
    Metric(
        "repetitions",
        attrgetter("repetitions"),
        "integer",
        meaning="Completed repetitions, each in fresh processes.",
        header="n",
        importance=2,
    ),
    Metric("status", attrgetter("status.value"), "text", importance=DATA_ONLY),
    Metric("reason", attrgetter("reason"), "text", importance=DATA_ONLY),
)
"""Values of a collective and message size."""


def bus_factor(collective: str, group_size: int) -> float:
    """busbw ÷ algbw as nccl-tests defines it (doc/PERFORMANCE.md).

    busbw is what each link would carry if the ranks passed the bytes round a ring, so it does not
    depend on the group size. It is not what the wires carry where trees are used, or switches that
    add up on the way.
    """
    part = (group_size - 1) / group_size
    return {"all_reduce": 2 * part, "broadcast": 1.0}.get(collective, part)


def collective_rows(records: Iterable[CollectiveRecord]) -> tuple[CollectiveRow, ...]:
    """One row per configuration and message size, in the order they were run."""
    groups: dict[str, list[CollectiveRecord]] = {}
    for record in records:
        groups.setdefault(record.spec.label, []).append(record)
    rows = list[CollectiveRow]()
    for group in groups.values():
        done = [record for record in group if record.status is Status.COMPLETED]
        blamed = next((record for record in group if record not in done), group[0])
        row = CollectiveRow(
            spec=group[0].spec, repetitions=len(done), status=blamed.status, reason=blamed.reason
        )
        sizes = enumerate(row.spec.sizes_bytes)
        rows += [_at_size(row, nbytes, done, place) for place, nbytes in sizes] if done else [row]
    return tuple(rows)


def _at_size(
    row: CollectiveRow, nbytes: int, done: Sequence[CollectiveRecord], place: int
) -> CollectiveRow:
    """The row with the numbers of a message size, which has this place among the sizes."""
    calls = [[timings[place] for timings in record.ranks] for record in done]
    # Every sample took as long as on its slowest rank.
    slowest = [map(max, zip(*(rank.seconds for rank in ranks), strict=True)) for ranks in calls]
    seconds = geometric_mean([median(samples) for samples in slowest], unit="s")
    algorithm = seconds.mapped(partial(truediv, nbytes), unit="B/s")
    factor = bus_factor(row.spec.collective, row.spec.group_size)
    return replace(
        row,
        nbytes=nbytes,
        seconds=seconds,
        algorithm_bytes_per_second=algorithm,
        bus_bytes_per_second=algorithm.scaled(factor, unit="B/s"),
        largest_error=max(rank.largest_error for ranks in calls for rank in ranks),
    )

"""The fastest configuration of each batch size, and what it ties with.

Copies that do not train together (`independent`) are never the fastest, nor are configurations that
did not complete or had wrong gradients. If the interval of another configuration overlaps that of
the fastest, the two are statistically tied: overlap is a cautious test, which suits a fastest one
that was picked out of many. One that ran only once has no interval, and is tied with everything.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import geometric_mean

from dpbench import units
from dpbench.analysis.change import ALPHA, PerRepetition, change_between, mean_per_repetition
from dpbench.analysis.estimate import Estimate
from dpbench.analysis.rows import Row
from dpbench.records.trial import Status
from dpbench.specs import Configuration
from dpbench.specs.traits import INDEPENDENT, SINGLE

MAX_BATCH_SIZES = 4
"""Most batch sizes that have a fastest row each."""
SMALL_DIFFERENCE = 0.02
"""Relative difference of two speeds below which it is not worth measuring which is higher."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fastest:
    """The configuration with the highest speed, and what it ties with."""

    work: str = ""
    """The work of all its rows, see `Row.work`."""
    batch_size: int | None = None
    """The batch size of all its rows; None if they have several, or a script chooses it."""
    reason: str = ""
    """Why none is named as the fastest; empty if one is."""
    load: str = ""
    """Load on the machine, for which the fastest row may not be the fastest."""
    row: Row | None = None
    """The fastest row; None if no row has a speed."""
    rivals: tuple[Row, ...] = ()
    """The rows that tie with it, the nearest first: their intervals overlap, and repetitions that
    ran in turn do not show that they are slower."""
    backends: tuple[str, Estimate, str] | None = None
    """The fastest backend, the ratio of its speed to that of the next one, and the next one, in
    rows that differ in nothing else; None without rows of several backends and repetitions."""
    lead: tuple[Estimate, Row] | None = None
    """The ratio of its throughput to that of the nearest row, within repetitions that ran in turn,
    and that row; None where the ratio says no more than the two throughputs."""

    @property
    def throughput(self) -> float:
        """The throughput of the fastest row; 0 if there is none."""
        return self.row.throughput.value if self.row and self.row.throughput else 0.0

    @property
    def ties(self) -> tuple[Row, ...]:
        """The rivals with speeds to compare: of several repetitions, and not too noisy."""
        stated = {rival: rival.throughput for rival in self.rivals if rival.throughput}
        return tuple(
            rival
            for rival, throughput in stated.items()
            if throughput.interval and not throughput.is_too_noisy
        )

    def repetitions_to_decide(self, rival: Row) -> int | None:
        """The fewest repetitions that tell the fastest row from a rival in 4 of 5 cases, if they
        differ by as much as was measured, or by SMALL_DIFFERENCE; None if there are as many now, or
        if it is out of reach."""
        if self.row is None:
            return None
        change = self.row.change_from(rival)
        if change is None:
            return None
        limit = max(change.estimate.value, 1 + SMALL_DIFFERENCE)
        needed = change.repetitions_to_settle(limit, ALPHA / 2)
        return needed if needed and needed > min(change.repetitions) else None


def fastest_by_batch_size(rows: Sequence[Row], *, work: str, is_spoiled: bool) -> Iterator[Fastest]:
    """The fastest row of each batch size, as speeds at two do not compete; of all rows of a work
    if there are more than MAX_BATCH_SIZES."""
    sizes = sorted({row.batch_size for row in rows if row.batch_size})
    groups: dict[int | None, Sequence[Row]] = {None: rows}
    if 0 < len(sizes) <= MAX_BATCH_SIZES:
        groups = {size: [row for row in rows if row.batch_size == size] for size in sizes}
    for size, same in groups.items():
        yield replace(find_fastest(same, is_spoiled=is_spoiled), work=work, batch_size=size)


def find_fastest(rows: Sequence[Row], *, is_spoiled: bool = False) -> Fastest:
    """The fastest of all rows of one table.

    Nothing is named as the fastest if the highest speed is too noisy to state, or if only `single`
    completed. Where load spoils the speeds, the fastest says so.
    """
    usable = [
        row
        for row in rows
        if row.status is Status.COMPLETED
        and row.verified is not False
        and row.implementation != INDEPENDENT
    ]
    if reason := _why_no_speed(rows, usable):
        return Fastest(reason=reason)
    throughputs = {row: row.throughput for row in usable if row.throughput}
    fastest, *others = sorted(throughputs, key=lambda row: -throughputs[row].value)
    ends = {row: throughputs[row].interval or (0.0, math.inf) for row in throughputs}
    low, high = ends[fastest]
    overlapping = [row for row in others if low <= ends[row][1] and ends[row][0] <= high]
    changes = {row: fastest.change_from(row) for row in others}
    ratios = {
        row: change.estimate
        for row, change in changes.items()
        if change and change.is_paired and not change.estimate.is_too_noisy
    }
    rivals = tuple(row for row in overlapping if row not in ratios or ratios[row].ends[0] <= 1)
    slowed = sum(row.is_under_load for row in rows)
    load = ""
    if is_spoiled and slowed:
        load = f"other programs slowed down {slowed} of {units.counted(len(rows), 'row')}"
    if throughputs[fastest].is_too_noisy:
        reason = load or "the speeds are too noisy"
    nearest = next(iter((*rivals, *others)), None)
    is_known = nearest in ratios and (reason or load or overlapping)
    return Fastest(
        reason=reason,
        load=load,
        row=fastest,
        rivals=rivals,
        backends=_fastest_backends(usable),
        lead=(ratios[nearest], nearest) if nearest is not None and is_known else None,
    )


def _fastest_backends(rows: Sequence[Row]) -> tuple[str, Estimate, str] | None:
    """See `Fastest.backends`: the mean over configurations that all backends have, within
    each repetition."""
    throughputs: dict[Configuration, dict[str, PerRepetition]] = {}
    for row in rows:
        if row.configuration and row.group_size > 1:
            others = replace(row.configuration, backend="none")
            throughputs.setdefault(others, {})[row.configuration.backend] = row.throughputs
    alike = [sides for sides in throughputs.values() if len(sides) > 1]
    backends = {backend for sides in alike for backend in sides}
    alike = [sides for sides in alike if sides.keys() == backends]
    means = {
        backend: mean_per_repetition([sides[backend] for sides in alike]) for backend in backends
    }
    if len(means) < 2 or not all(means.values()):
        return None
    first, second, *_ = sorted(means, key=lambda name: -geometric_mean(means[name].values()))
    change = change_between(means[second], means[first], ran_in_turn=True)
    if change is None or change.error is None:
        return None
    return first, change.estimate, second


def _why_no_speed(rows: Sequence[Row], usable: Sequence[Row]) -> str:
    """Why no row can be the fastest; empty if one can."""
    ends = {row.status.words for row in rows if row.status is not Status.COMPLETED}
    ended = f" ({', '.join(sorted(ends))})" if ends else ""
    if not rows:
        return "no trial was recorded"
    if not any(row.throughput for row in usable):
        return f"no configuration completed{ended}" if ends else "no configuration has a speed"
    is_alone = all(row.implementation == SINGLE for row in usable)
    return f"no configuration but {SINGLE} completed{ended}" if is_alone and ends else ""

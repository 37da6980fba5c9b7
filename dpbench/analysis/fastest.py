"""The fastest configuration of each batch size, what it ties with, and ratios over all batch sizes.

Copies that do not train together (`independent`) are never the fastest, nor are configurations that
did not complete or had wrong gradients. Another configuration ties with the fastest unless a t test
of the two differs at the 5 % level, corrected for the number of others (Holm), as in `compare`. One
that ran only once has no test, and ties with everything.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import geometric_mean

from dpbench import units
from dpbench.analysis.change import (
    ALPHA,
    PerRepetition,
    change_between,
    holm,
    mean_per_repetition,
)
from dpbench.analysis.estimate import Estimate
from dpbench.analysis.rows import Row
from dpbench.messages import option_words
from dpbench.records.trial import Status
from dpbench.specs import AXES
from dpbench.specs.labels import IDENTITY
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
    """The rows that tie with it, the nearest first."""
    lead: tuple[Estimate, Row] | None = None
    """The ratio of its throughput to that of the nearest row, within repetitions that ran in turn,
    and that row; None if it is not known."""

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
        differ by as much as was measured, or by SMALL_DIFFERENCE, and all rivals are tested; None
        if there are as many now, or if it is out of reach."""
        if self.row is None:
            return None
        change = self.row.change_from(rival)
        if change is None:
            return None
        limit = max(change.estimate.value, 1 + SMALL_DIFFERENCE)
        needed = change.repetitions_to_settle(limit, ALPHA / 2 / max(1, len(self.rivals)))
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
    usable = _competing(rows)
    if reason := _why_no_speed(rows, usable):
        return Fastest(reason=reason)
    throughputs = {row: row.throughput for row in usable if row.throughput}
    fastest, *others = sorted(throughputs, key=lambda row: -throughputs[row].value)
    changes = [fastest.change_from(row) for row in others]
    p_values = holm([c.p_value if c and c.is_tested else None for c in changes])
    rivals = tuple(row for row, p in zip(others, p_values, strict=True) if p is None or p >= ALPHA)
    slowed = sum(row.is_under_load for row in rows)
    load = ""
    if is_spoiled and slowed:
        load = f"other programs slowed down {slowed} of {units.counted(len(rows), 'row')}"
    if throughputs[fastest].is_too_noisy:
        reason = load or "the speeds are too noisy"
    lead = None
    if others:
        nearest = (*rivals, *others)[0]
        change = changes[others.index(nearest)]
        if change and change.is_paired and not change.estimate.is_too_noisy:
            lead = change.estimate, nearest
    return Fastest(
        reason=reason,
        load=load,
        row=fastest,
        rivals=rivals,
        lead=lead,
    )


def average_ratios(rows: Sequence[Row]) -> Iterator[tuple[str, Estimate, str]]:
    """The fastest backend or option of each setting with several values, the ratio of its speed to
    that of the next one, and the next one, for rows of one work.

    A ratio is the geometric mean over two or more pairs of rows with several replicas that differ
    in nothing else.
    """
    # Speeds at two batch sizes do not compete.
    axes = {n: a for n, a in AXES.items() if not a.changes_work and n not in IDENTITY}
    settings = {
        row: {name: getattr(row, name) for name in IDENTITY}
        | {name: row.configuration.setting(name) for name in axes}
        for row in _competing(rows)
        if row.configuration and row.group_size > 1
    }
    for name in ("backend", *axes):
        alike: dict[tuple[object, ...], dict[object, PerRepetition]] = {}
        for row, values in settings.items():
            others = tuple(value for key, value in values.items() if key != name)
            alike.setdefault(others, {})[values[name]] = row.throughputs
        compared = {value for sides in alike.values() if len(sides) > 1 for value in sides}
        pairs = [sides for sides in alike.values() if sides.keys() == compared]
        if len(pairs) < 2:
            continue
        means = {
            value: mean_per_repetition([sides[value] for sides in pairs]) for value in compared
        }
        if not all(means.values()):
            continue
        first, second, *_ = sorted(means, key=lambda value: -geometric_mean(means[value].values()))
        change = change_between(means[second], means[first], ran_in_turn=True)
        if change is not None and change.error is not None:
            words = [str(first), str(second)]
            if name in axes:
                axis = axes[name]
                words = [option_words(axis.option, axis.text(v)) for v in (first, second)]
            yield words[0], change.estimate, words[1]


def _competing(rows: Sequence[Row]) -> list[Row]:
    """The rows that may be the fastest: completed, and no copies that train for themselves."""
    return [
        row
        for row in rows
        if row.status is Status.COMPLETED
        and row.verified is not False
        and row.implementation != INDEPENDENT
    ]


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

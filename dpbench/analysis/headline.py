"""The headline of results: the fastest configuration and the best scaling.

Copies that do not train together (`independent`) are never the best, nor are configurations that
did not complete or had wrong gradients. If the interval of another configuration overlaps that of
the best, the two are statistically tied, and the headline names it: overlap is a cautious test,
which suits a best that was picked out of many. A best that ran only once is tied with everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dpbench import units
from dpbench.analysis.estimate import Estimate
from dpbench.analysis.rows import Row
from dpbench.analysis.scaling import ran_in_turn, speedup_of
from dpbench.records.trial import Status
from dpbench.specs.traits import INDEPENDENT, SINGLE


@dataclass(frozen=True, kw_only=True, slots=True)
class Best:
    """A number that no other configuration exceeds."""

    key: str
    """Key of the metric."""
    row: Row
    others: tuple[Row, ...]
    """All that it was compared with, the nearest first."""
    rivals: tuple[Row, ...]
    """Those of them that tie with it: their intervals overlap, and repetitions that ran in turn do
    not show that they are slower."""
    nearest: Row | None = None
    """The first of its rivals, or without any of the others."""
    lead: Estimate | None = None
    """How many times as fast as the nearest it is in repetitions that ran in turn, so that what
    disturbed one disturbed both; None where that says no more than the two speeds."""

    @property
    def value(self) -> Estimate:
        value: Estimate = self.row[self.key]
        return value


@dataclass(frozen=True, kw_only=True, slots=True)
class Headline:
    """The results that a reader wants first; None for one that is not known."""

    fastest: Best | None = None
    reason: str = ""
    """Why it is not named as the fastest; empty if it is."""
    scaling: Best | None = None
    """The highest efficiency at the largest number of replicas."""


def headline_of(rows: Sequence[Row], *, is_busy: bool = False) -> Headline:
    """The headline of all rows of one table.

    Nothing is named as the fastest if the machine was too busy for figures to be trusted, if the
    highest speed is too noisy to state, or if only `single` completed.
    """
    usable = [
        row
        for row in rows
        if row.status is Status.COMPLETED
        and row.verified is not False
        and row.implementation != INDEPENDENT
    ]
    # Published times have no throughput; the least is the fastest.
    best = _best(usable, "images_per_second")
    best = best or _best(usable, "duration_seconds", least=True)
    reason = _why_no_speed(rows, usable)
    if reason or best is None:
        return Headline(reason=reason)
    disturbed = sum(row.is_disturbed for row in usable)
    if is_busy and disturbed:
        reason = f"other programs slowed down {disturbed} of {units.counted(len(usable), 'row')}"
    elif best.value.is_too_noisy:
        reason = "the speeds are too noisy"
    fastest = _compared_in_turn(best)
    if not (reason or best.rivals):
        fastest = replace(fastest, lead=None)
    scaled = [row for row in usable if row.efficiency and row.group_size > 1]
    largest = max((row.group_size for row in scaled), default=0)
    scaling = _best([row for row in scaled if row.group_size == largest], "efficiency")
    is_stated = scaling is not None and not scaling.value.is_too_noisy and not reason
    return Headline(
        fastest=fastest,
        reason=reason,
        scaling=scaling if is_stated else None,
    )


def _why_no_speed(rows: Sequence[Row], usable: Sequence[Row]) -> str:
    """Why no row can be the fastest; empty if one can."""
    ends = {row.status.words for row in rows if row.status is not Status.COMPLETED}
    ended = f" ({', '.join(sorted(ends))})" if ends else ""
    counted = sorted({row.throughput.unit for row in usable if row.throughput})
    if len(counted) > 1:
        return f"speeds are in different units: {', '.join(counted)}"
    if not rows:
        return "no trial was recorded"
    if not any(row.throughput or row.duration for row in usable):
        return f"no configuration completed{ended}" if ends else "no configuration has a speed"
    is_alone = all(row.implementation == SINGLE for row in usable)
    return f"no configuration but {SINGLE} completed{ended}" if is_alone and ends else ""


def _best(rows: Sequence[Row], key: str, *, least: bool = False) -> Best | None:
    """The row with the highest value of a metric, or the least, and those that tie with it."""
    measured = [row for row in rows if row[key] is not None]
    if not measured:
        return None
    best, *others = sorted(measured, key=lambda row: row[key].value, reverse=not least)
    low, high = best[key].ends
    rivals = (row for row in others if low <= row[key].ends[1] and row[key].ends[0] <= high)
    return Best(key=key, row=best, others=tuple(others), rivals=tuple(rivals))


def _compared_in_turn(best: Best) -> Best:
    """The fastest row with those rivals alone that repetitions in turn do not show to be slower,
    and its lead over the nearest row."""
    ratios = {
        row: ratio
        for row in best.others
        if ran_in_turn(best.row.records, row.records)
        if (ratio := speedup_of(best.row.records, row.records)) and not ratio.is_too_noisy
    }
    rivals = tuple(row for row in best.rivals if row not in ratios or ratios[row].ends[0] <= 1)
    nearest = next(iter((*rivals, *best.others)), None)
    lead = None if nearest is None else ratios.get(nearest)
    return replace(best, rivals=rivals, nearest=nearest, lead=lead)

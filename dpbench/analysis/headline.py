"""The headline: the fastest configuration and the best scaling.

Copies that do not train together (`independent`) are never the best, nor are configurations that
did not complete or had wrong gradients. If the interval of another configuration overlaps that of
the best, the two are statistically tied, and the headline names it: overlap is a cautious test,
which suits a best that was picked out of many. A best that ran only once is tied with everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dpbench.analysis.estimate import Estimate
from dpbench.analysis.rows import Row
from dpbench.records.trial import Status
from dpbench.specs.traits import INDEPENDENT, SINGLE

NOISE = "the speeds are too noisy"


@dataclass(frozen=True, kw_only=True, slots=True)
class Best:
    """A number that no other configuration exceeds."""

    value: Estimate
    row: Row
    rivals: tuple[Row, ...]
    """Configurations whose intervals overlap the best one's, the nearest first."""
    others: int
    """Number of configurations it was compared with."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Headline:
    """The results that a reader wants first; None for one that is not known."""

    fastest: Best | None = None
    scaling: Best | None = None
    """The highest efficiency at the largest number of replicas."""
    reason: str = ""
    """Why there is no fastest configuration."""


def headline_of(rows: Sequence[Row], *, load: str = "") -> Headline:
    """The headline of all rows of one table.

    Nothing is named if the machine was too busy for the figures to be trusted, which `load` says,
    if the highest speed is too noisy to state, or if only the baseline `single` completed.
    """
    usable = [
        row
        for row in rows
        if row.status is Status.COMPLETED
        and row.verified is not False
        and row.implementation != INDEPENDENT
    ]
    if load and any(row.throughput for row in usable):
        return Headline(reason=load)
    # Published times have no throughput; the least is the fastest.
    fastest = _best(usable, "images_per_second") or _best(usable, "duration_seconds", least=True)
    reason = _why_no_speed(rows, usable)
    if not reason and fastest is not None and fastest.value.is_too_noisy:
        return Headline(reason=NOISE)
    scaled = [row for row in usable if row.efficiency and row.group_size > 1]
    largest = max((row.group_size for row in scaled), default=0)
    scaling = _best([row for row in scaled if row.group_size == largest], "efficiency")
    return Headline(
        fastest=None if reason else fastest,
        scaling=None if scaling is None or scaling.value.is_too_noisy else scaling,
        reason=reason,
    )


def _why_no_speed(rows: Sequence[Row], usable: Sequence[Row]) -> str:
    """Why no row can be the fastest; empty if one can."""
    ends = {row.status.words for row in rows if row.status is not Status.COMPLETED}
    ended = f" ({', '.join(sorted(ends))})" if ends else ""
    units = sorted({row.throughput.unit for row in usable if row.throughput})
    if len(units) > 1:
        return f"speeds are in different units: {', '.join(units)}"
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
    best, *rest = sorted(measured, key=lambda row: row[key].value, reverse=not least)
    low, high = best[key].ends
    rivals = (row for row in rest if low <= row[key].ends[1] and row[key].ends[0] <= high)
    return Best(value=best[key], row=best, rivals=tuple(rivals), others=len(rest))

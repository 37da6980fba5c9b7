"""The headline: the fastest configuration and the best scaling.

Copies that do not train together (`independent`) are never the best, nor are configurations that
did not complete or had wrong gradients. If the interval of another configuration overlaps that of
the best, the two are statistically tied, and the headline names it: overlap is a cautious test,
which suits a best that was picked out of many. A best that ran only once is tied with everything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from dpbench.analysis.estimate import Estimate
from dpbench.analysis.row import Row
from dpbench.records.trial import Status
from dpbench.specs.traits import INDEPENDENT, SINGLE

NOISE = "the speeds are too noisy; measure again with more --repetitions"
Rows = Sequence[Row]


@dataclass(frozen=True, kw_only=True, slots=True)
class Best:
    """A number that no other configuration exceeds."""

    value: Estimate
    row: Row
    rivals: tuple[Row, ...]
    """Configurations whose intervals overlap the best one's, the nearest first."""
    others: int
    """Number of configurations it was compared with."""

    def __repr__(self) -> str:
        return f"<Best {self.row.label!r}: {self.value.value:.4g}>"


@dataclass(frozen=True, kw_only=True, slots=True)
class Headline:
    """The results that a reader wants first; None for one that is not known."""

    fastest: Best | None = None
    scaling: Best | None = None
    """The highest efficiency at the largest number of replicas."""
    reason: str = ""
    """Why there is no fastest configuration."""
    synthetic: bool = False
    """Whether the numbers come from a cost model."""


def headline(rows: Rows, *, synthetic: bool = False, load: str = "") -> Headline:
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
        return Headline(reason=load, synthetic=synthetic)
    units = sorted({row.throughput.unit for row in usable if row.throughput})
    fastest = _fastest(usable)
    reason = ""
    if len(units) > 1:
        reason = f"speeds are in different units: {', '.join(units)}"
    elif fastest is None:
        reason = _why_no_speed(rows)
    elif all(row.implementation == SINGLE for row in usable) and (
        ends := _ends(row for row in rows if row.implementation != SINGLE)
    ):
        reason = f"no configuration but {SINGLE} completed ({ends})"
    elif fastest.value.is_too_noisy:
        return Headline(reason=NOISE, synthetic=synthetic)
    scaled = [row for row in usable if row.efficiency and row.group_size > 1]
    largest = max((row.group_size for row in scaled), default=0)
    scaled = [row for row in scaled if row.group_size == largest]
    scaling = _best(scaled, lambda row: row.efficiency)
    return Headline(
        fastest=None if reason else fastest,
        scaling=None if scaling is None or scaling.value.is_too_noisy else scaling,
        reason=reason,
        synthetic=synthetic,
    )


def _fastest(rows: Rows) -> Best | None:
    """The fastest row by throughput; for published times, by the least time."""
    return _best(rows, lambda row: row.throughput) or _best(
        rows, lambda row: row.duration, least=True
    )


def _ends(rows: Iterable[Row]) -> str:
    """How those that did not complete ended; empty if all completed."""
    ends = {row.status.words for row in rows if row.status is not Status.COMPLETED}
    return ", ".join(sorted(ends))


def _why_no_speed(rows: Rows) -> str:
    if not rows:
        return "no trial was recorded"
    if ends := _ends(rows):
        return f"no configuration completed ({ends})"
    has_speed = any(row.throughput for row in rows)
    return f"{INDEPENDENT} is not ranked" if has_speed else "no speed is known"


def _best(
    rows: Rows, read: Callable[[Row], Estimate | None], *, least: bool = False
) -> Best | None:
    measured = [(value, row) for row in rows if (value := read(row)) is not None]
    measured.sort(key=lambda one: one[0].value, reverse=not least)
    if not measured:
        return None
    (value, row), *rest = measured
    low, high = value.ends
    return Best(
        value=value,
        row=row,
        rivals=tuple(
            other for theirs, other in rest if low <= theirs.ends[1] and theirs.ends[0] <= high
        ),
        others=len(rest),
    )

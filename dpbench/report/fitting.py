"""Makes a table fit a terminal: headers on two lines, a short status, then fewer columns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from dpbench.report.text_table import TextColumn, longest_line

NARROWEST_STATUS = 9
ALWAYS = ("implementation", "backend", "group_size", "batch_size", "images_per_second", "status")
"""Columns that say which row it is, how fast, and whether it may be believed."""
FIRST_TO_STAY = (
    "efficiency",
    "speedup",
    "duration_seconds",
    "exposed_communication_seconds",
    "time_to_loss_seconds",
    "goodput",
    "mfu",
    "final_loss",
    "joules_per_item",
    "peak_memory_bytes",
    "noise_scale_samples",
)
"""Of the others those that stand further left."""

Columns = tuple[TextColumn, ...]
Width = Callable[[Columns], int]
"""How many characters the widest line takes in a layout."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fitted:
    """What is shown, and the headers of what is not."""

    columns: Columns
    left_out: tuple[str, ...] = ()


def fit(columns: Columns, width_of: Width, limit: int, *, all_of_them: bool) -> Fitted:
    """The most that fits `limit` characters; with `all_of_them` no column is left out."""
    if width_of(columns) <= limit:
        return Fitted(columns=columns)
    wrapped = tuple(replace(c, header=c.wrapped or c.header) for c in columns)
    if width_of(_narrowed(wrapped, 0)) <= limit or all_of_them:
        return Fitted(columns=_as_wide_as_fits(wrapped, width_of, limit))
    kept = {column.key for column in wrapped if column.key in ALWAYS}
    for column in sorted(wrapped, key=_importance):
        tried = _only(wrapped, kept | {column.key})
        if width_of(_narrowed(tried, 0)) <= limit:
            kept.add(column.key)
    return Fitted(
        columns=_as_wide_as_fits(_only(wrapped, kept), width_of, limit),
        left_out=tuple(column.header for column in columns if column.key not in kept),
    )


def _importance(column: TextColumn) -> int:
    known = column.key in FIRST_TO_STAY
    return FIRST_TO_STAY.index(column.key) if known else len(FIRST_TO_STAY)


def _only(columns: Columns, keys: Collection[str]) -> Columns:
    return tuple(column for column in columns if column.key in keys)


def _as_wide_as_fits(columns: Columns, width_of: Width, limit: int) -> Columns:
    """Gives the column that can be narrowed whatever the others leave."""
    longest = max((longest_line(c.cells) for c in columns if c.narrowed), default=0)
    excess = width_of(columns) - limit
    return columns if excess <= 0 else _narrowed(columns, longest - excess)


def _narrowed(columns: Columns, width: int) -> Columns:
    most = max(NARROWEST_STATUS, width)
    return tuple(replace(c, cells=c.narrowed(most)) if c.narrowed else c for c in columns)


def longest_cells(columns: Sequence[TextColumn]) -> list[str]:
    """A line that is as wide as the whole table."""
    return ["x" * longest_line(column.cells) for column in columns]

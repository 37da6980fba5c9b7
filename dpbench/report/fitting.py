"""Makes a table fit a terminal: headers on two lines, a short status, then fewer columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from dpbench.report.table import Table, longest_line

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


Width = Callable[[Table], int]
"""How many characters the widest line of a table takes in a layout."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fitted:
    """What is shown, and the headers of what is not."""

    table: Table
    left_out: tuple[str, ...] = ()


def fit(table: Table, width_of: Width, limit: int, *, all_of_them: bool) -> Fitted:
    """The most that fits `limit` characters; with `all_of_them` no column is left out."""
    line = table.widest  # all that widths depend on, however many rows there are
    if width_of(line) <= limit:
        return Fitted(table=table)
    line = _wrapped(line)
    kept = {column.key for column in table.columns}
    if width_of(_narrowed(line, 0)) > limit and not all_of_them:
        kept &= {*ALWAYS}
        for key in sorted((column.key for column in table.columns), key=_importance):
            if width_of(_narrowed(line.only(kept | {key}), 0)) <= limit:
                kept.add(key)
    line = line.only(kept)
    shown = _wrapped(table.only(kept))
    if (excess := width_of(line) - limit) > 0:
        shown = _narrowed(shown, _longest(line) - excess)
    return Fitted(
        table=shown,
        left_out=tuple(column.header for column in table.columns if column.key not in kept),
    )


def _wrapped(table: Table) -> Table:
    columns = (replace(one, header=one.wrapped or one.header) for one in table.columns)
    return replace(table, columns=tuple(columns))


def _importance(key: str) -> int:
    return FIRST_TO_STAY.index(key) if key in FIRST_TO_STAY else len(FIRST_TO_STAY)


def _longest(table: Table) -> int:
    """Characters of the column that can be narrowed."""
    texts = (table.texts(k) for k, column in enumerate(table.columns) if column.narrowed)
    return max(map(longest_line, texts), default=0)


def _narrowed(table: Table, width: int) -> Table:
    """Gives the column that can be narrowed so many characters."""
    most = max(NARROWEST_STATUS, width)
    for place, column in enumerate(table.columns):
        if column.narrowed:
            table = table.with_texts(place, column.narrowed(most))
    return table

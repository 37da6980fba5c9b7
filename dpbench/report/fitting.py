"""Fits the table of a sweep into the width of a terminal.

What all rows share becomes a line above the table. Where that is not enough, headers take two
lines, intervals shorten, the status narrows, and last of all columns go, those that matter least
first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from decimal import Decimal

from dpbench.report.table import Table, longest_line

NARROWEST_STATUS = 9
IDENTITY_COLUMNS = ("implementation", "backend", "group_size", "batch_size")
"""Columns that say which row it is; a table for people has them unless --columns names others."""
RESULT_COLUMNS = ("images_per_second", "speedup", "efficiency", "loss_slope_per_second")
"""Main results of a sweep, in the order in which they are shown."""
ALWAYS_SHOWN = (*IDENTITY_COLUMNS, *RESULT_COLUMNS, "status")
FIRST_TO_STAY = (
    *("loss_slope_per_second", "efficiency", "speedup"),
    "duration_seconds",
    "exposed_communication_seconds",
    "time_to_loss_seconds",
    "mfu",
    "final_loss",
    "joules_per_item",
    "peak_memory_bytes",
)
"""Columns that are kept longest, in order; of the others, those further left stay longer."""
SHORTENED = ("speedup", "loss_slope_per_second", "efficiency", "images_per_second")
"""Columns whose intervals shorten where there is no room. The speedup's goes first: divided by the
group size it is the efficiency's."""
_NUMBER = r"[-−]?[\d,.]+(?:e-\d+)?"
_SYMMETRIC = re.compile(rf"(?P<value>{_NUMBER}) ± {_NUMBER}(?P<unit>(?: \S+)?)")
_RANGE = re.compile(
    rf"(?P<value>{_NUMBER}) \((?P<low>{_NUMBER})(?:–| to )(?P<high>{_NUMBER})\)(?P<unit>(?: \S+)?)"
)

Width = Callable[[Table], int]
"""How many characters the widest line of a table takes in a layout."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fitted:
    """The columns to show, and notes for the reader."""

    table: Table
    left_out: tuple[str, ...] = ()
    """Headers of columns that are not shown."""
    shortened: tuple[str, ...] = ()
    """Headers of columns without their intervals, or with the wider side of them."""


def take_out_shared(
    table: Table, keys: Collection[str]
) -> tuple[Table, tuple[tuple[str, str], ...]]:
    """Takes out those of the columns `keys` whose text is the same in all rows.

    Returns the other columns, and (header, text) of what was taken out. A table of a single row
    keeps all of it.
    """
    if len(table.rows) < 2:
        return table, ()
    same = {
        column.key: (column.header, texts[0])
        for place, column in enumerate(table.columns)
        if column.key in keys and len(set(texts := table.texts(place))) == 1
    }
    kept = {column.key for column in table.columns} - set(same)
    return table.only(kept), tuple(same.values())


def fit_to_width(table: Table, width_of: Width, limit: int, *, all_of_them: bool) -> Fitted:
    """The most that fits `limit` characters; with `all_of_them` no column is left out."""
    line = table.widest  # all that widths depend on, however many rows there are
    if width_of(line) <= limit:
        return Fitted(table=table)
    table = _wrapped(table)
    kept = {column.key for column in table.columns}
    if not all_of_them and width_of(_narrowed(table.widest, 0)) > limit:
        kept &= {*ALWAYS_SHOWN}
    table, shortened = _shortened(table, kept, width_of, limit)
    line = table.widest
    if not all_of_them:
        kept = _most(line, kept, width_of, limit)
    left_out = (column.header for column in table.columns if column.key not in kept)
    shown, line = table.only(kept), line.only(kept)
    if (excess := width_of(line) - limit) > 0:
        shown = _narrowed(shown, _longest(line) - excess)
    return Fitted(
        table=shown,
        left_out=tuple(_in_one_line(left_out)),
        shortened=tuple(_in_one_line(shortened)),
    )


def _shortened(
    table: Table, kept: Collection[str], width_of: Width, limit: int
) -> tuple[Table, list[str]]:
    """The table with intervals as short as it takes for the columns `kept`; whose they are."""
    headers: list[str] = []
    for shorten in (_wider_side, _value_alone):
        for key in SHORTENED if shorten is _value_alone else reversed(SHORTENED):
            if width_of(_narrowed(table.widest.only(kept), 0)) <= limit:
                return table, headers
            place = next((k for k, one in enumerate(table.columns) if one.key == key), None)
            if place is None or (key == "images_per_second" and shorten is _value_alone):
                continue
            texts = table.texts(place)
            if (shorter := [shorten(text) for text in texts]) != texts:
                table = table.with_texts(place, shorter)
                headers = [*dict.fromkeys((*headers, table.columns[place].header))]
    return table, headers


def _wider_side(text: str) -> str:
    """ "88 (69–112) %" as "88 ± 24 %": the interval then holds more than it has to."""
    found = _RANGE.fullmatch(text)
    if found is None or "e" in found["value"]:
        return text
    value, low, high = (
        Decimal(found[name].replace(",", "").replace("−", "-")) for name in ("value", "low", "high")
    )
    return f"{found['value']} ± {max(value - low, high - value):,}{found['unit']}"


def _value_alone(text: str) -> str:
    for form in (_SYMMETRIC, _RANGE):
        if found := form.fullmatch(text):
            return f"{found['value']}{found['unit']}"
    return text


def _most(line: Table, kept: Collection[str], width_of: Width, limit: int) -> set[str]:
    """The columns that fit: which row it is and how fast, then the others by importance."""
    chosen = {*kept} - {*RESULT_COLUMNS[1:]}
    chosen &= {*IDENTITY_COLUMNS, "images_per_second", "status"}
    for key in sorted((column.key for column in line.columns), key=_importance):
        if width_of(_narrowed(line.only(chosen | {key}), 0)) <= limit:
            chosen.add(key)
    return chosen


def _in_one_line(headers: Iterable[str]) -> Iterator[str]:
    return (header.replace("\n", " ") for header in headers)


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

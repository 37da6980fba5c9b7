"""Summaries as text: tables for people, rows for programs."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tabulate import tabulate

from dpbench.analysis.configuration import ConfigurationSummary
from dpbench.analysis.rows import ROW_KEYS, to_row
from dpbench.report import formats, seed_table
from dpbench.report.cells import STATUS_WIDTH, status_cell
from dpbench.report.columns import DEFAULT_COLUMNS, SEED, Column, claim_columns, parse_columns
from dpbench.report.footnotes import footnotes
from dpbench.report.notes import bullet
from dpbench.report.numbers import MISSING

NARROWEST_STATUS = 9


@dataclass(frozen=True, kw_only=True, slots=True)
class RenderedTable:
    """The text for stdout, and the notes that its format has no room for."""

    text: str
    notes_aside: tuple[str, ...] = ()


def render(
    rows: Sequence[ConfigurationSummary],
    *,
    format: str | None = None,
    columns: str | None = None,
    notes: Sequence[str] = (),
    width: int | None = None,
) -> RenderedTable:
    """Writes a table; raises UnknownName for a format or column that is not known.

    `width` is that of the terminal; None, as for a file, keeps every header on one line.

    `columns` is None for the default ones, "seed" for the layout of torch-ddp's README, else
    comma-separated keys. `notes` are added to those that the rows themselves bring.
    """
    name = formats.check_format(format or formats.DEFAULT)
    if columns == SEED:
        return _render_seed(rows, format, notes)
    chosen = None if columns is None else parse_columns(columns)
    if name in formats.DATA_FORMATS:
        keys = ROW_KEYS if chosen is None else tuple(column.key for column in chosen)
        return RenderedTable(text=_data(rows, name, keys), notes_aside=tuple(notes))
    empty: list[str] = []
    if chosen is None:
        chosen, empty = _without_empty(
            rows, (*DEFAULT_COLUMNS[:-1], *claim_columns(rows), DEFAULT_COLUMNS[-1])
        )
    below = [*footnotes(rows, [column.key for column in chosen]), *notes]
    if empty:
        below.append(f"not measured, column left out: {', '.join(empty)}")
    table = _fitting(rows, chosen, name, width)
    if not formats.has_room_for_notes(name):
        return RenderedTable(text=table, notes_aside=tuple(below))
    return RenderedTable(text="\n".join([table, "", *map(bullet, below)]).rstrip() + "\n")


def _without_empty(
    rows: Sequence[ConfigurationSummary], columns: Sequence[Column]
) -> tuple[tuple[Column, ...], list[str]]:
    """Default columns that have a value somewhere, and the headers of those that have none."""
    full, empty = [], []
    for column in columns:
        if not rows or any(column.cell(row) != MISSING for row in rows):
            full.append(column)
        elif not column.only_if_any:
            empty.append(_header(column, rows, wrapped=False))
    return tuple(full), empty


def _fitting(
    rows: Sequence[ConfigurationSummary],
    columns: Sequence[Column],
    name: str,
    terminal_width: int | None,
) -> str:
    """The widest layout that fits: first headers are wrapped, then the status is shortened."""
    text = _tabulated(rows, columns, name, wrapped=False, status_width=STATUS_WIDTH)
    limit = terminal_width or _width(text)
    if not rows or _width(text) <= limit or not formats.may_wrap_headers(name):
        return text
    text = _tabulated(rows, columns, name, wrapped=True, status_width=STATUS_WIDTH)
    excess = _width(text) - limit
    if excess <= 0:
        return text
    longest = max(len(status_cell(row)) for row in rows)
    status_width = max(NARROWEST_STATUS, longest - excess)
    return _tabulated(rows, columns, name, wrapped=True, status_width=status_width)


def _width(text: str) -> int:
    return max(map(len, text.splitlines()), default=0)


def _tabulated(
    rows: Sequence[ConfigurationSummary],
    columns: Sequence[Column],
    name: str,
    *,
    wrapped: bool,
    status_width: int,
) -> str:
    narrowed = [
        replace(column, cell=lambda row: status_cell(row, status_width))
        if column.key == "status"
        else column
        for column in columns
    ]
    text: str = tabulate(
        [[column.cell(row) for column in narrowed] for row in rows],
        headers=[_header(column, rows, wrapped=wrapped) for column in columns],
        tablefmt=formats.ALIASES.get(name, name),
        disable_numparse=True,
        colalign=["left" if column.text else "right" for column in columns] if rows else None,
    )
    return "\n".join(line.rstrip() for line in text.splitlines())


def _header(column: Column, rows: Sequence[ConfigurationSummary], *, wrapped: bool) -> str:
    items = {row.item for row in rows if row.throughput} or {row.item for row in rows}
    item = items.pop() if len(items) == 1 else "items"
    words = column.wrapped if wrapped and column.wrapped else column.header
    return words.replace("{Item}", item[:1].upper() + item[1:])


def _data(rows: Sequence[ConfigurationSummary], name: str, keys: Sequence[str]) -> str:
    plain = [{key: to_row(row)[key] for key in keys} for row in rows]
    if name == "json":
        return json.dumps(plain, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    text = io.StringIO()
    writer = csv.DictWriter(text, keys, lineterminator="\n")
    writer.writeheader()
    writer.writerows(plain)
    return text.getvalue()


def _render_seed(
    rows: Sequence[ConfigurationSummary], format: str | None, notes: Sequence[str]
) -> RenderedTable:
    aside = (*seed_table.notes(rows), *notes)
    if format in formats.DATA_FORMATS:
        return RenderedTable(text=_data(rows, format, seed_table.KEYS), notes_aside=aside)
    cells = seed_table.cells(rows)
    if format is None:
        return RenderedTable(text=seed_table.layout(cells), notes_aside=aside)
    text = tabulate(
        cells,
        headers=seed_table.HEADERS,
        tablefmt=formats.ALIASES.get(format, format),
        disable_numparse=True,
    )
    return RenderedTable(text=text + "\n", notes_aside=aside)

"""Summaries as text: the columns that there are, tables for people, rows for programs."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from dpbench.analysis.configuration import ConfigurationSummary
from dpbench.analysis.fields import Ending, ReadField, Value
from dpbench.analysis.levels import COLUMNS, LEVELS, configuration_row
from dpbench.errors import UnknownName, UsageError
from dpbench.messages import one_line
from dpbench.records.trial import Status
from dpbench.report.export.formats import WRITERS
from dpbench.report.fitting import (
    IDENTITY_COLUMNS,
    RESULT_COLUMNS,
    Fitted,
    fit_to_width,
    take_out_shared,
)
from dpbench.report.footnotes import footnotes, intervals
from dpbench.report.numbers import quantity
from dpbench.report.progress.terminal import WIDTH
from dpbench.report.table import MISSING, Table, text_table
from dpbench.report.terminal import (
    DATA_FORMATS,
    DEFAULT,
    below,
    bullet,
    check_format,
    has_room_for_notes,
    width_of,
    write_table,
)
from dpbench.report.torch_ddp_table import (
    TORCH_DDP_HEADERS,
    TORCH_DDP_KEYS,
    TORCH_DDP_LAYOUT,
    torch_ddp_cells,
    torch_ddp_notes,
    torch_ddp_text,
)
from dpbench.report.values import cell, table_of, write_ending

CLAIMED = "As the source of the numbers states it; nobody measured it here."

Rows = Sequence[ConfigurationSummary]
Column = ReadField[ConfigurationSummary]
Keys = tuple[str, ...]
DEFAULT_COLUMNS = tuple(column for column in COLUMNS.values() if column.shown != "on request")
LEADING = (RESULT_COLUMNS[0], "duration_seconds", *RESULT_COLUMNS[1:])
"""Columns that stand first behind those that tell rows apart; published rows have times."""
NO_ROWS = "No rows: nothing has been measured."


def parse_columns(text: str) -> tuple[Column, ...]:
    """Reads --columns a,b,c; raises UnknownName or UsageError. ("seed" is a layout of its own.)"""
    return tuple(COLUMNS[name] for name in parse_keys(text, COLUMNS))


def parse_keys(
    text: str, known: Iterable[str], *, layouts: Sequence[str] = (TORCH_DDP_LAYOUT,)
) -> Keys:
    """Parse a list of keys; `layouts` are other values that --columns takes, for the error."""
    names = tuple(name.strip() for name in text.split(","))
    keys = tuple(known)
    for name in names:
        if name not in keys:
            raise UnknownName("column", name, [*keys, *layouts])
    doubled = [name for name in names if names.count(name) > 1]
    if doubled:
        raise UsageError(f"--columns {text!r}: expected each column once, got {doubled[0]} twice")
    return names


def header_of(words: str, rows: Rows) -> str:
    """A header with the item that the rows count in place of {Item}, if it is one."""
    items = _items(rows)
    item = one_line(items.pop()) if len(items) == 1 else "items"
    return words.replace("{Item}", item[:1].upper() + item[1:])


def with_units(table: Table, rows: Rows) -> Table:
    """The table with its unit behind each speed where rows count several items, such as images
    and tokens, so that its header cannot say which."""
    place = next((k for k, one in enumerate(table.columns) if one.key == RESULT_COLUMNS[0]), None)
    if place is None or len(_items(rows)) == 1:
        return table
    return table.with_texts(place, [one_line(quantity(row.throughput)) for row in rows])


def _items(rows: Rows) -> set[str]:
    return {row.item for row in rows if row.throughput} or {row.item for row in rows}


def claim_columns(rows: Rows) -> tuple[Column, ...]:
    """A column for everything that a published file claims and nobody measured."""

    def read(name: str) -> Callable[[ConfigurationSummary], Value]:
        return lambda row: dict(row.claims).get(name)

    names = dict.fromkeys(name for row in rows for name, _ in row.claims)
    return tuple(
        ReadField(
            key=name,
            header=f"{_claim_words(name)} (claimed)",
            meaning=CLAIMED,
            shown="always",
            read=read(name),
        )
        for name in names
    )


def _claim_words(name: str) -> str:
    words = name.removesuffix("_claimed").split("_")
    spelled = [
        word.upper() if word in ("gb", "gpu", "mb", "gib", "mib") else word for word in words
    ]
    spelled[0] = spelled[0][:1].upper() + spelled[0][1:]
    return " ".join(spelled)


@dataclass(frozen=True, kw_only=True, slots=True)
class RenderedTable:
    """The text for stdout, and the notes that its format has no room for."""

    text: str
    notes_aside: tuple[str, ...] = ()


def render(
    rows: Rows,
    *,
    format: str | None = None,
    columns: str | None = None,
    notes: Sequence[str] = (),
    width: int | None = None,
    whole: str | None = None,
    caption: str = "",
) -> RenderedTable:
    """Writes a table; raises UnknownName for a format or column that is not known.

    `columns` is None for the default ones, "seed" for the layout of torch-ddp's README, else
    comma-separated keys. `notes` are added to those that the rows themselves bring.

    `width` is that of the terminal: headers are wrapped, intervals shortened and default columns
    left out, until the table fits. None, as for a file, keeps everything on one line. `whole` is
    the file that has all columns. `caption` is for formats that have one, which also tell there
    what ± stands for.
    """
    name = check_format(format or DEFAULT)
    if columns == TORCH_DDP_LAYOUT:
        return _render_torch_ddp(rows, format, notes)
    if name in DATA_FORMATS:
        known = tuple(field.key for field in LEVELS["configuration"])
        keys = known if columns is None else parse_keys(columns, known)
        return RenderedTable(text=_data(rows, name, keys), notes_aside=tuple(notes))
    chosen, empty = _choose(rows, columns)
    terminal = name == DEFAULT
    if terminal and not rows:
        return RenderedTable(text="\n".join([NO_ROWS, "", *map(bullet, notes)]).rstrip() + "\n")
    table = _table(rows, chosen, cut=terminal)
    fitted, above = Fitted(table=table), list[str]()
    if terminal and columns is None:
        table, same = take_out_shared(table, _may_be_shared(rows))
        above = _all_rows(len(rows), same)
        fitted = Fitted(table=table)
    if width is not None and terminal:
        fitted = fit_to_width(table, width_of, width, all_of_them=columns is not None)
    table = fitted.table
    shown = [column.key for column in table.columns]
    said = [
        *footnotes(rows, shown),
        *notes,
        *_not_measured(empty),
        *_not_whole(fitted, width, whole),
    ]
    about = "; ".join([caption, *intervals(rows)]) if caption else ""
    text = write_table(replace(table, caption=about), name)
    if not has_room_for_notes(name):
        return RenderedTable(text=f"{text}\n", notes_aside=tuple(said))
    lines = below(said, name, min(width or WIDTH, WIDTH))
    return RenderedTable(text="\n".join([*above, text, "", *lines]).rstrip() + "\n")


def _choose(rows: Rows, columns: str | None) -> tuple[tuple[Column, ...], list[str]]:
    """The columns that were asked for, with those that say which row it is; else the default
    ones, and the headers of those that have no value anywhere."""
    if columns is not None:
        asked = parse_columns(columns)
        if any(column.key in IDENTITY_COLUMNS for column in asked):
            return asked, []  # whoever names some of them has chosen
        return (*(COLUMNS[key] for key in IDENTITY_COLUMNS), *asked), []
    full, empty = [], []
    for column in (*DEFAULT_COLUMNS[:-1], *claim_columns(rows), DEFAULT_COLUMNS[-1]):
        if not rows or any(cell(column, row) != MISSING for row in rows):
            full.append(column)
        elif column.shown != "if measured":
            empty.append(header_of(column.header, rows))
    return tuple(sorted(full, key=_place)), empty


def _place(column: Column) -> tuple[int, int]:
    """Sort key: columns that identify rows first; then the main results of a sweep."""
    order = [*COLUMNS]
    if column.key in LEADING:
        return 1, LEADING.index(column.key)
    place = order.index(column.key) if column.key in order else len(order)
    if column.key == "status":
        return 3, 0
    return (0 if place < order.index(RESULT_COLUMNS[0]) else 2), place


def _may_be_shared(rows: Rows) -> tuple[str, ...]:
    """Columns that a line above the table says for all rows; a status only if all is well."""
    well = all(row.status is Status.COMPLETED and row.reason is None for row in rows)
    return (*IDENTITY_COLUMNS[1:], "status") if well else IDENTITY_COLUMNS[1:]


def _all_rows(count: int, same: Sequence[tuple[str, str]]) -> list[str]:
    words = [text if header == "Status" else f"{header.lower()} {text}" for header, text in same]
    return [f"All {count:,} rows: {', '.join(words)}", ""] if words else []


def _table(rows: Rows, columns: Sequence[Column], *, cut: bool) -> Table:
    """The table; `cut` shortens reasons to the room in a terminal."""
    table, statuses = with_units(table_of(columns, rows), rows), _statuses(rows)
    place = next((k for k, column in enumerate(columns) if column.key == "status"), None)
    if place is not None and not cut:
        table = table.with_texts(place, [*map(one_line, statuses(sys.maxsize))])
    shown = (
        replace(
            column,
            header=header_of(column.header, rows),
            wrapped=header_of(column.wrapped, rows),
            narrowed=statuses if column.key == "status" else None,
        )
        for column in table.columns
    )
    return replace(table, columns=tuple(shown))


def _statuses(rows: Rows) -> Callable[[int], Sequence[str]]:
    endings = [Ending(row.status, row.reason) for row in rows]
    return lambda width: [write_ending(ending, width) for ending in endings]


def _not_measured(headers: Sequence[str]) -> list[str]:
    return [f"not measured, column left out: {', '.join(headers)}"] if headers else []


def _not_whole(fitted: Fitted, width: int | None, whole: str | None) -> Iterator[str]:
    if fitted.shortened:
        where = f"; {whole} has them whole" if whole else ""
        yield f"intervals shortened to fit {width} columns: {', '.join(fitted.shortened)}{where}"
    if fitted.left_out:
        where = (
            f"they are in {whole}, and --columns shows them" if whole else "--columns shows them"
        )
        yield f"left out to fit {width} columns: {', '.join(fitted.left_out)}; {where}"


def _data(rows: Rows, name: str, keys: Sequence[str]) -> str:
    text = io.StringIO()
    WRITERS[name](text, keys, map(configuration_row, rows))
    return text.getvalue()


def _render_torch_ddp(rows: Rows, format: str | None, notes: Sequence[str]) -> RenderedTable:
    aside = (*torch_ddp_notes(rows), *notes)
    if format in DATA_FORMATS:
        return RenderedTable(text=_data(rows, format, TORCH_DDP_KEYS), notes_aside=aside)
    cells = torch_ddp_cells(rows)
    if format is None:
        return RenderedTable(text=torch_ddp_text(cells), notes_aside=aside)
    text = write_table(text_table(TORCH_DDP_HEADERS, cells, words=TORCH_DDP_HEADERS), format)
    return RenderedTable(text=f"{text}\n", notes_aside=aside)

"""The table of configurations: which columns it has, and how it is written in each format."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from dpbench.analysis.metric import Metric, Value
from dpbench.analysis.metrics import COLUMNS
from dpbench.analysis.row import Row
from dpbench.errors import UnknownName, UsageError
from dpbench.messages import one_line
from dpbench.records.trial import Status
from dpbench.report.footnotes import footnotes, unavailable
from dpbench.report.formats import csv_text, json_text
from dpbench.report.numbers import NOISY
from dpbench.report.table import MISSING, Table, text_table
from dpbench.report.terminal import DATA_FORMATS, DEFAULT, check_format, filled, fitted, write_table
from dpbench.report.torch_ddp_table import (
    TORCH_DDP_HEADERS,
    TORCH_DDP_KEYS,
    TORCH_DDP_LAYOUT,
    torch_ddp_cells,
    torch_ddp_notes,
    torch_ddp_text,
)
from dpbench.report.values import cell, table_of

Rows = Sequence[Row]
Column = Metric

IDENTITY_COLUMNS = ("implementation", "group_size", "batch_size")
"""Columns that identify a row; every table for people has them unless --columns names others."""
MOST_IMPORTANT = (
    *("images_per_second", "duration_seconds", "speedup", "status"),
    *("loss_slope_per_second", "efficiency", "exposed_communication_seconds"),
    *("mfu", "final_loss", "peak_memory_bytes"),
)
"""Columns that a narrow terminal keeps longest; the others leave first, from the right."""
DEFAULT_COLUMNS = tuple(column for column in COLUMNS.values() if column.shown != "on request")
NO_ROWS = "No rows: nothing has been measured.\n"


@dataclass(frozen=True, kw_only=True, slots=True)
class RenderedTable:
    """A table as text, and the notes needed to read it."""

    text: str
    notes_aside: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    """Those of the notes that are on columns of this table which were left out."""


def render(
    rows: Rows,
    *,
    format: str | None = None,
    columns: str | None = None,
    notes: Sequence[str] = (),
    width: int | None = None,
) -> RenderedTable:
    """Writes a table; raises UnknownName for an unknown format or column.

    Args:
        columns: None for the default ones, "seed" for the layout of torch-ddp's README, else
            comma-separated keys.
        notes: Are added to those that the rows bring.
        width: Width of the terminal. The least important default columns are left out until the
            table fits. None keeps them all.
    """
    name = check_format(format or DEFAULT)
    if name in DATA_FORMATS:
        return RenderedTable(text=_data(rows, name, columns), notes_aside=tuple(notes))
    if columns == TORCH_DDP_LAYOUT:
        table = text_table(TORCH_DDP_HEADERS, torch_ddp_cells(rows), words=TORCH_DDP_HEADERS)
        text = torch_ddp_text(rows) if format is None else f"{write_table(table, name)}\n"
        return RenderedTable(text=text, notes_aside=(*torch_ddp_notes(rows), *notes))
    is_short = name == DEFAULT and columns is None
    without = unavailable(rows) if is_short else {}
    skipped = [row for found in without.values() for row in found]
    shown, above = [row for row in rows if row not in skipped], [*without]
    chosen, unmeasured = usual_columns(shown) if columns is None else (_asked(columns), [])
    table = configurations(shown, chosen, with_reasons=name != DEFAULT)
    if is_short:
        table, common = _without_common(table, shown)
        above += common
    left_out: list[str] = []
    if unmeasured:
        left_out.append(f"not measured, column left out: {', '.join(unmeasured)}")
    if is_short and width is not None:
        table, dropped = _fitted_by_importance(table, width)
        left_out += dropped
    said = (*footnotes(rows), *notes, *left_out)
    if name == DEFAULT and not rows:
        return RenderedTable(text=NO_ROWS, notes_aside=said)
    if width is not None:
        above = [filled(line, width) for line in above]
    text = "\n".join([*above, write_table(table, name), ""])
    return RenderedTable(text=text, notes_aside=said, left_out=tuple(left_out))


def configurations(rows: Rows, columns: Sequence[Column], *, with_reasons: bool = False) -> Table:
    """A row for each configuration. Headers name the items that the rows count; if they count
    several, such as images and tokens, each speed has its unit.

    Without a column of their own, backends follow their implementation, "ddp/shm".
    """
    items = {row.item for row in rows if row.throughput} or {row.item for row in rows}
    item = one_line(items.pop()) if len(items) == 1 else "items"
    keys = {column.key for column in columns}
    named = []
    for column in columns:
        header = column.header.replace("{Item}", item[:1].upper() + item[1:])
        column = replace(column, header=header)
        if column.key == "efficiency" and "speedup" in keys:
            column = replace(column, style="share")
        named.append(column)
    table = table_of(named, rows)
    for place, column in enumerate(columns):
        if column.key == "images_per_second" and item == "items":
            speeds = [
                f"{text} {row.throughput.unit}" if row.throughput and text != NOISY else text
                for text, row in zip(table.texts(place), rows, strict=True)
            ]
            table = table.with_texts(place, [*map(one_line, speeds)])
        if column.key == "implementation" and "backend" not in keys:
            table = table.with_texts(place, [one_line(row.series) for row in rows])
        if column.key == "status":
            ends = [
                f"{row.status.words}: {row.reason}"
                if row.reason and with_reasons
                else row.status.words
                for row in rows
            ]
            table = table.with_texts(place, [*map(one_line, ends)])
    return table


def claim_columns(rows: Rows) -> tuple[Column, ...]:
    """A column for everything that a published file claims and nobody measured."""

    def read(name: str) -> Callable[[Row], Value]:
        return lambda row: row.claims.get(name)

    def header(name: str) -> str:
        first, *rest = (
            word.upper() if word in ("gb", "gpu", "mb", "gib", "mib") else word
            for word in name.removesuffix("_claimed").split("_")
        )
        return f"{' '.join([first[:1].upper() + first[1:], *rest])} (claimed)"

    return tuple(
        Metric(
            key=name,
            header=header(name),
            meaning="As the source of the numbers states it; not measured here.",
            shown="always",
            row=read(name),
        )
        for name in dict.fromkeys(name for row in rows for name in row.claims)
    )


def parse_columns(text: str) -> tuple[Column, ...]:
    """Reads --columns a,b,c; raises UnknownName or UsageError. ("seed" is a layout of its own.)"""
    return tuple(COLUMNS[name] for name in parse_keys(text, COLUMNS, layouts=(TORCH_DDP_LAYOUT,)))


def parse_keys(text: str, known: Iterable[str], *, layouts: Sequence[str] = ()) -> tuple[str, ...]:
    """Parse a list of keys; `layouts` are other values of --columns, for the error."""
    names, keys = tuple(name.strip() for name in text.split(",")), tuple(known)
    for name in names:
        if name not in keys:
            raise UnknownName("column", name, [*keys, *layouts])
        if names.count(name) > 1:
            raise UsageError(f"--columns {text!r}: expected each column once, got {name} twice")
    return names


def _asked(columns: str) -> tuple[Column, ...]:
    """The columns that were asked for, after those that identify a row."""
    asked = parse_columns(columns)
    if any(column.key in IDENTITY_COLUMNS for column in asked):
        return asked
    return (*(COLUMNS[key] for key in IDENTITY_COLUMNS), *asked)


def usual_columns(rows: Rows) -> tuple[tuple[Column, ...], list[str]]:
    """The columns that every table has by default, a terminal's and the page's: those with a value,
    the status where some row did not simply complete, and the final loss if all rows took the same
    number of steps. Also the headers of those without a value."""
    full, empty = [], []
    completed = rows and all(r.status is Status.COMPLETED and r.reason is None for r in rows)
    for column in (*DEFAULT_COLUMNS, *claim_columns(rows)):
        if completed and column.key == "status":
            continue
        if (
            column.key == "final_loss"
            and len({r["timed_steps"] for r in rows if r[column.key]}) > 1
        ):
            continue
        if not rows or any(cell(column, row) != MISSING for row in rows):
            full.append(column)
        elif column.shown != "if measured":
            empty.append(column.header.replace("{Item}", "Items"))
    return tuple(full), empty


def _fitted_by_importance(table: Table, width: int) -> tuple[Table, list[str]]:
    """The table without the least important columns that do not fit, and a note that names them."""
    keys = [column.key for column in table.columns]
    others = [key for key in keys if key not in (*IDENTITY_COLUMNS, *MOST_IMPORTANT)]
    narrow, _ = fitted(table, (*reversed(others), *reversed(MOST_IMPORTANT[1:])), width)
    kept = {column.key for column in narrow.columns}
    names = ", ".join(key for key in keys if key not in kept)
    return narrow, [f"left out to fit {width} characters; --columns takes {names}"] * bool(names)


def _without_common(table: Table, rows: Rows) -> tuple[Table, list[str]]:
    """Takes out columns that are equal in all rows, and says so in a line above the table."""
    if len(rows) < 2:
        return table, []
    taken = {
        column.key: f"{column.key.replace('_', ' ')} {texts[0]}"
        for place, column in enumerate(table.columns)
        if column.key in IDENTITY_COLUMNS[1:] and len(set(texts := table.texts(place))) == 1
    }
    common = [f"All {len(rows):,} rows: {', '.join(taken.values())}"] if taken else []
    return table.without(taken), common


def _data(rows: Rows, name: str, columns: str | None) -> str:
    """Plain values under their keys, all of them unless `columns` names some."""
    from dpbench.analysis.frames import to_frame

    frame = to_frame(rows)
    if columns is not None:
        keys = TORCH_DDP_KEYS if columns == TORCH_DDP_LAYOUT else parse_keys(columns, frame.columns)
        frame = frame[list(keys)]
    return csv_text(frame) if name == "csv" else json_text(frame)

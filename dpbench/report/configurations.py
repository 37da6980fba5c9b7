"""The table of configurations: its columns, its text in each format, and rows for programs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from dpbench.analysis.estimate import Estimate
from dpbench.analysis.formatting import TOO_NOISY, rate_with_unit
from dpbench.analysis.metrics import (
    ITEM_PLACEHOLDER,
    TABLE_METRICS,
    UNDER_LOAD,
    Metric,
    Value,
    claimed_metrics,
)
from dpbench.analysis.published import CLAIM_END
from dpbench.analysis.rows import Row
from dpbench.analysis.sentences import noise_warnings, reasons
from dpbench.errors import UsageError, unknown_name
from dpbench.messages import one_line, option_words
from dpbench.report import DATA_FORMATS, FORMATS
from dpbench.report.answer import json_text
from dpbench.report.commands import command_to_measure
from dpbench.report.table import MISSING, Column, Table, column, text_column
from dpbench.specs.command_line import CommandLine
from dpbench.specs.traits import INDEPENDENT

if TYPE_CHECKING:
    import pandas as pd

GEM_COLUMNS = "gem"
"""The value of --columns for the table in the README of torch-ddp, a Ruby gem; it stands alone."""
IDENTITY_COLUMNS = ("implementation", "group_size", "batch_size")
"""Columns that identify a row; every table for people has them unless --columns names one of
them."""
COMMAND_KEY = "command"
"""Key of the column with the command that measures a row."""
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n")
"""Beginnings of texts that a spreadsheet would compute; any text may come from a record."""


def rows_text(
    rows: Sequence[Row],
    *,
    format: str | None = None,
    columns: str | None = None,
    width: int | None = None,
) -> str:
    """The rows in a format, with the default columns, "gem" for those of a Ruby gem's README, or
    comma-separated keys, on a terminal of this width, see `Table.text`.

    Raises UsageError if the format or a column is unknown.
    """
    name = format or "text"
    if name not in FORMATS:
        raise unknown_name(option_words("format"), name, FORMATS)
    if name in DATA_FORMATS:
        from dpbench.analysis.frames import row_frame

        return frame_text(row_frame(rows), name, columns)
    table = configurations_table(rows, columns)
    return f"{table.markdown if name == 'markdown' else table.text(width)}\n"


def configurations_table(
    rows: Sequence[Row], columns: str | None = None, *, command: CommandLine | None = None
) -> Table:
    """The table of terminals, Markdown and pages; raises as `rows_text` does.

    Rows of one batch size stand together. Sizes that all rows have in common stand in a note. On a
    narrow terminal the least important columns leave first, unless the user chose the columns.
    Columns without a value are left out. With the `command` that measured, each row has the one
    that measures it alone, in a column that readers of a page can copy.
    """
    if columns == GEM_COLUMNS:
        return _gem_table(rows)
    rows = sorted(rows, key=lambda row: row.batch_size or 0)
    known = TABLE_METRICS | {metric.key: metric for metric in claimed_metrics(rows)}
    chosen = () if columns is None else _chosen_keys(columns, known)
    # Headers name what the rows count; if they count several items, each speed has its unit.
    items = {row.item for row in rows if row.throughput} or {row.item for row in rows}
    metrics = [
        known[key].counting(map(one_line, items)) for key in dict.fromkeys((*chosen, *known))
    ]
    values = {metric.key: [metric.read(row) for row in rows] for metric in metrics}
    shown = chosen or [one.key for one in metrics if _is_shown(one, rows, values[one.key])]
    laid_out = list[Column]()
    bare = list[Metric]()
    for metric in metrics:
        of_rows = values[metric.key]
        is_empty = all(value is None for value in of_rows)
        if is_empty and metric.key not in chosen:
            continue
        if metric.beside and metric.beside[0] in shown:
            metric = replace(metric, write=metric.beside[1])
        elif metric.key in shown and metric.by_default and any(map(_is_bare, of_rows)):
            bare.append(metric)
        texts = [cell(metric, row, value) for row, value in zip(rows, of_rows, strict=True)]
        placed = metric_column(metric, of_rows, texts, by_default=metric.key in shown)
        laid_out.append(replace(placed, leaves=0) if chosen else placed)
    common = [one for one in laid_out if not chosen and _is_common(one)]
    laid_out = [replace(one, by_default=False) if one in common else one for one in laid_out]
    again = [command_to_measure(command, [row.configuration]) for row in rows] if command else []
    if any(again):
        laid_out.append(text_column("", again, key=COMMAND_KEY, by_default=False))
    sizes = ", ".join(f"{one.key.replace('_', ' ')} {one.cells[0]}" for one in common)
    notes = [f"All {len(rows):,} rows: {sizes}"] if common else []
    notes += _mark_notes(rows)
    if bare:
        # Where speeds are single values, so is what is computed from them, further right.
        headers = ", ".join(metric.header for metric in bare)
        notes.append(f"{headers} without ±: {bare[0].without_interval}")
    notes += [known[key].note for key in shown if known[key].note]
    notes += _row_notes(rows)
    return Table(columns=tuple(laid_out), notes=tuple(notes), rules=_rules(rows))


def metric_column(
    metric: Metric, values: Iterable[Value], texts: Iterable[str], *, by_default: bool = True
) -> Column:
    """The column of a metric with its value and text in each row, sorted by plain values."""
    return column(
        metric.header,
        texts,
        key=metric.key,
        meaning=metric.meaning,
        # What is claimed is mostly numbers, whose digits are left alone.
        is_text=metric.value_type in ("text", "boolean") and not metric.key.endswith(CLAIM_END),
        sort=tuple(value.value if isinstance(value, Estimate) else value for value in values),
        by_default=by_default,
        leaves=metric.leaves,
    )


def _is_common(size: Column) -> bool:
    """Whether it is a size that all rows have in common."""
    is_size = size.key in IDENTITY_COLUMNS[1:]
    return is_size and len({*size.cells}) == 1 < len(size.cells)


def _mark_notes(rows: Sequence[Row]) -> Iterator[str]:
    """What the marks beside names mean."""
    if any(row.implementation == INDEPENDENT for row in rows):
        yield "* copies that do not communicate: about the best possible, not a way to train"
    if any(row.is_under_load for row in rows):
        yield f"{UNDER_LOAD} other programs used the cores during some of its trials"


def _row_notes(rows: Sequence[Row]) -> Iterator[str]:
    """What failed, who published the rows, and how many repetitions would be enough."""
    sources = dict.fromkeys(row.published.source for row in rows if row.published)
    published = (f"source: {name}" for name in sources if name)
    yield from map(one_line, (*reasons(rows), *published, *noise_warnings(rows, rows, "report")))


def _chosen_keys(columns: str, known: Iterable[str]) -> tuple[str, ...]:
    """The keys of --columns, after those that identify a row unless one of these is among them."""
    keys = parse_keys(columns, known)
    return keys if {*keys} & {*IDENTITY_COLUMNS} else (*IDENTITY_COLUMNS, *keys)


def _is_shown(metric: Metric, rows: Sequence[Row], values: Sequence[Value]) -> bool:
    """Whether a table has the column without --columns."""
    pairs = zip(rows, values, strict=True)
    return metric.by_default and any(
        value is not None and metric.says_something(row, value) for row, value in pairs
    )


def _rules(rows: Sequence[Row]) -> tuple[int, ...]:
    """The rows at which another batch size begins, unless most batch sizes have one row."""
    batches = [row.batch_size for row in rows]
    starts = [n for n, (one, two) in enumerate(pairwise(batches), 1) if one != two]
    return tuple(starts) if 2 * (len(starts) + 1) <= len(rows) else ()


def _gem_table(rows: Sequence[Row]) -> Table:
    """The columns of the gem's README, with its headers, order and number format."""
    shown = sorted(rows, key=lambda row: (row.backend or "", row.group_size, row.batch_size or 0))
    speeds = (row.throughput for row in shown)
    return Table(
        columns=(
            text_column("Backend", [row.backend or MISSING for row in shown]),
            text_column("Proc Group", [str(row.group_size) for row in shown]),
            text_column("Batch", [str(row.batch_size or MISSING) for row in shown]),
            text_column("Images/s", [f"{e.value:.1f}" if e else MISSING for e in speeds]),
        ),
        notes=(*_mark_notes(shown), *_row_notes(shown)),
    )


def _is_bare(value: Value) -> bool:
    """Whether it is an estimate that has no interval, but could have one."""
    return isinstance(value, Estimate) and value.basis == "single value"


def cell(metric: Metric, row: Row, value: Value) -> str:
    """The text of a row's value of the metric; a speed has its unit where the metric lacks it."""
    if value is None:
        return MISSING
    if metric.words is not None:
        return metric.words(row)
    # A ratio without an interval would look the most exact of all beside a speed that is too noisy.
    follows = metric.follows_throughput or _is_bare(value)
    if follows and row.throughput is not None and row.throughput.is_too_noisy:
        return TOO_NOISY
    if isinstance(value, Estimate) and ITEM_PLACEHOLDER in metric.unit:
        return rate_with_unit(value)
    return metric.write(value)


def frame_text(frame: pd.DataFrame, format: str, columns: str | None = None) -> str:
    """The rows for programs, as CSV or JSON, with these `columns`, all unless given.

    CSV has a header of keys and one line per row; missing values are empty, and an apostrophe
    stands before every text that a spreadsheet would compute. JSON is an array with one object per
    row; missing values are null and infinity is the text "inf". Raises UsageError for a format of
    documents or an unknown column.
    """
    from pandas.api.types import is_numeric_dtype

    if columns is not None:
        frame = frame[list(parse_keys(columns, map(str, frame.columns)))]

    if format == "json":
        return json_text(plain_rows(frame))
    if format != "csv":
        raise UsageError(f"{format} has rows of configurations only; expected csv or json")

    def inert(value: Any) -> Any:
        is_formula = isinstance(value, str) and value.startswith(_FORMULA_STARTS)
        return f"'{value}" if is_formula else value

    # Only the categories of a categorical column are seen; millions of steps share them.
    texts = {
        name: column.map(inert, na_action="ignore")
        for name, column in frame.items()
        if not is_numeric_dtype(column.dtype)
    }
    return str(frame.assign(**texts).to_csv(index=False, lineterminator="\n"))


def plain_rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows as plain values, see `frame_text`."""
    plain = frame.astype(object).where(frame.notna(), None)
    plain = plain.replace({math.inf: "inf", -math.inf: "-inf"})
    return [{str(key): value for key, value in row.items()} for row in plain.to_dict("records")]


def parse_keys(text: str, known: Iterable[str]) -> tuple[str, ...]:
    """Read --columns a,b,c."""
    names = tuple(name.strip() for name in text.split(","))
    keys, option = tuple(known), option_words("columns", text)
    for name in names:
        if name == GEM_COLUMNS:
            raise UsageError(f"{option}: expected {name} alone, and as text or markdown")
        if name not in keys:
            raise unknown_name(option_words("columns"), name, [*keys, GEM_COLUMNS])
        if names.count(name) > 1:
            raise UsageError(f"{option}: expected each column once, got {name} twice")
    return names

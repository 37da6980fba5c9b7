"""The table of configurations: its columns, its text in each format, and rows for programs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from dpbench.analysis.estimate import Estimate
from dpbench.analysis.losses import SLOPE_BLOCKS
from dpbench.analysis.metrics import TABLE_METRICS, UNDER_LOAD, Metric, Value, claimed_metrics
from dpbench.analysis.rows import Row
from dpbench.analysis.sentences import noise_warnings, reasons
from dpbench.errors import UsageError, unknown_name
from dpbench.messages import one_line, option_words
from dpbench.records.trial import Status
from dpbench.report import DATA_FORMATS, FORMATS
from dpbench.report.answer import json_text
from dpbench.report.commands import command_to_measure
from dpbench.report.formatting import SPEED_STYLES, TOO_NOISY, metric_column, quantity, write
from dpbench.report.table import MISSING, Column, Table, text_column
from dpbench.specs.command_line import CommandLine
from dpbench.specs.traits import INDEPENDENT

if TYPE_CHECKING:
    import pandas as pd

GEM_COLUMNS = "gem"
"""The value of --columns for the table in the README of torch-ddp, a Ruby gem; it stands alone."""
IDENTITY_COLUMNS = ("implementation", "group_size", "batch_size")
"""Columns that identify a row; every table for people has them unless --columns names one of
them."""
STAYING_COLUMNS = (*IDENTITY_COLUMNS, "images_per_second")
"""Columns that every terminal has room for."""
LAST_TO_LEAVE = (
    *("duration_seconds", "speedup", "status", "efficiency", "loss_slope_per_second"),
    *("exposed_communication_seconds", "mfu", "peak_memory_bytes"),
)
"""Columns that a narrow terminal keeps longest; the others leave first, from the right."""
SLOPE_KEY = "loss_slope_per_second"
MULTIPLES_OF_THROUGHPUT = ("exposed_communication_seconds", SLOPE_KEY, "mfu")
"""Values that are too noisy where the throughput is."""
SINGLE_VALUES = "single values (n = 1), which have no interval"
TOO_FEW_STEPS = f"too few timed steps for an interval (below {SLOPE_BLOCKS[-1][0]})"
SLOPE_NOTE = (
    "Loss/s: fall of the training loss per second at a fixed learning rate, which favors few "
    "replicas"
)
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
    keys = dict.fromkeys((*chosen, *known))
    values = {key: [known[key].read(row) for row in rows] for key in keys}
    filled = [key for key in keys if key in chosen or any(v is not None for v in values[key])]
    shown = chosen or [
        key for key in filled if known[key].by_default and _matters(key, values[key], rows)
    ]
    leaving = () if chosen else [*dict.fromkeys((*LAST_TO_LEAVE, *known))][::-1]
    laid_out, bare = list[Column](), list[str]()
    for key in filled:
        metric = known[key].counting(map(one_line, items))
        if key == "efficiency" and "speedup" in shown:
            # It has the same relative interval, which is written once.
            metric = replace(metric, style="share")
        elif key in shown and metric.by_default and any(map(_is_bare, values[key])):
            bare.append(metric.header)
        pairs = zip(rows, values[key], strict=True)
        texts = [cell(metric, row, value, with_rate=len(items) > 1) for row, value in pairs]
        leaves = leaving.index(key) + 1 if leaving and key not in STAYING_COLUMNS else 0
        look = {"leaves": leaves, "by_default": key in shown}
        laid_out.append(metric_column(metric, values[key], texts, **look))
    common = [one for one in laid_out if not chosen and _is_common(one)]
    laid_out = [replace(one, by_default=False) if one in common else one for one in laid_out]
    again = [command_to_measure(command, [row.configuration]) for row in rows] if command else []
    if any(again):
        laid_out.append(text_column("", again, key=COMMAND_KEY, by_default=False))
    notes = [SLOPE_NOTE] if SLOPE_KEY in shown else []
    if bare:
        # Where speeds are single values, so is what is computed from them, further right.
        is_slope = known[SLOPE_KEY].header == bare[0]
        why = TOO_FEW_STEPS if is_slope else SINGLE_VALUES
        notes.insert(0, f"{', '.join(bare)} without ±: {why}")
    sizes = ", ".join(f"{one.key.replace('_', ' ')} {one.cells[0]}" for one in common)
    all_rows = [f"All {len(rows):,} rows: {sizes}"] if common else []
    return Table(
        columns=tuple(laid_out),
        notes=(*all_rows, *_mark_notes(rows), *notes, *_row_notes(rows)),
        rules=_rules(rows),
    )


def _is_common(size: Column) -> bool:
    """Whether it is a size that all rows have in common."""
    is_size = size.key in IDENTITY_COLUMNS[1:]
    return is_size and len({*size.cells}) == 1 < len(size.cells)


def _mark_notes(rows: Sequence[Row]) -> Iterator[str]:
    """What the marks beside names mean."""
    if any(row.implementation == INDEPENDENT for row in rows):
        yield "* copies without communication: an upper bound within noise, not a way to train"
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


def _matters(key: str, values: Sequence[Value], rows: Sequence[Row]) -> bool:
    """Whether a column says anything: a loss that falls or rises, a trial that did not complete."""
    if key == "status":
        return any(row.status is not Status.COMPLETED or row.reason for row in rows)
    if key == SLOPE_KEY:
        ends = [slope.ends for slope in values if isinstance(slope, Estimate)]
        return any(not low <= 0 <= high for low, high in ends)
    return True


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


def cell(metric: Metric, row: Row, value: Value, *, with_rate: bool = False) -> str:
    """The text of a row's value of the metric; a speed has its unit if `with_rate`."""
    if value is None:
        return MISSING
    if metric.words is not None:
        return metric.words(row)
    # A ratio without an interval would look the most exact of all beside a speed that is too noisy.
    is_ratio = _is_bare(value) and metric.style in SPEED_STYLES
    follows = metric.key in MULTIPLES_OF_THROUGHPUT or is_ratio
    if follows and row.throughput is not None and row.throughput.is_too_noisy:
        return TOO_NOISY
    return quantity(value, metric.style) if with_rate else write(value, metric.style)


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

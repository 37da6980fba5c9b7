"""Rows as people and programs read them: the table of configurations in each format, and frames as
CSV and JSON."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dpbench.analysis.metrics import TABLE_METRICS, Metric
from dpbench.analysis.rows import Row
from dpbench.errors import UnknownName, UsageError
from dpbench.messages import one_line, option_words
from dpbench.records.trial import Status
from dpbench.report.answer import json_text
from dpbench.report.footnotes import Rows, unavailable
from dpbench.report.numbers import NOISY, cell, metric_column, write
from dpbench.report.table import MISSING, Table, filled, not_shown, text_column
from dpbench.specs.traits import INDEPENDENT

if TYPE_CHECKING:
    import pandas as pd


TEXT = "text"
"""The format for terminals."""
DATA_FORMATS = ("csv", "json")
"""Plain values for programs, under all keys."""
FORMATS = (TEXT, "markdown", *DATA_FORMATS)
SEED = "seed"
"""The value of --columns for the columns of torch-ddp's README, from which dpbench grew."""
SEED_KEYS = "backend,group_size,batch_size,images_per_second"
IDENTITY_COLUMNS = ("implementation", "group_size", "batch_size")
"""Columns that identify a row; every table for people has them unless --columns names one of
them."""
MOST_IMPORTANT = (
    *("images_per_second", "duration_seconds", "speedup", "status"),
    *("efficiency", "loss_slope_per_second", "exposed_communication_seconds"),
    *("mfu", "final_loss", "peak_memory_bytes"),
)
"""Columns that a narrow terminal keeps longest; the others leave first, from the right."""
NO_ROWS = "No rows: nothing has been measured.\n"
UPPER_BOUND = "* copies without communication: an upper bound, not a way to train"
"""Explains why a row of `independent` is never the fastest."""
UNLIMITED = 100_000
"""Width of a table that keeps all columns."""
_UNITS = re.compile(r"\b([gm]i?b|gpu)\b")
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
"""Beginnings of texts that a spreadsheet would compute; any text may come from a record."""


def rows_text(
    rows: Rows, *, format: str | None = None, columns: str | None = None, width: int | None = None
) -> str:
    """The rows in a format.

    Args:
        columns: None for the default ones, "seed" for those of torch-ddp's README, else
            comma-separated keys.
        width: Width of the terminal. The least important default columns are left out until the
            table fits, and named below it. None keeps them all.

    Raises:
        UnknownName: The format or a column is unknown.
    """
    name = format or TEXT
    if name not in FORMATS:
        raise UnknownName(option_words("format"), name, FORMATS)
    if name in DATA_FORMATS:
        from dpbench.analysis.frames import to_frame

        return frame_text(to_frame(rows), name, SEED_KEYS if columns == SEED else columns)
    if name == TEXT and columns is None:
        return _for_terminal(rows, width or UNLIMITED)
    if columns == SEED:
        # The columns of torch-ddp's README, with its headers, order and number format.
        shown = sorted(rows, key=lambda r: (r.backend or "", r.group_size, r.batch_size or 0))
        speeds = (row.throughput for row in shown)
        table = Table(
            columns=(
                text_column("Backend", [row.backend or MISSING for row in shown]),
                text_column("Proc Group", [str(row.group_size) for row in shown]),
                text_column("Batch", [str(row.batch_size or MISSING) for row in shown]),
                text_column("Images/s", [f"{e.value:.1f}" if e else MISSING for e in speeds]),
            )
        )
    else:
        chosen = parse_columns(columns) if columns else usual_columns(rows)
        table = configurations(rows, chosen, with_reasons=name != TEXT)
    if name != TEXT:
        return f"{table.markdown}\n"
    return f"{table.text(UNLIMITED)[0]}\n" if rows else NO_ROWS


def _for_terminal(rows: Rows, width: int) -> str:
    """The default columns that fit, what all rows have in common above, and the others below."""
    if not rows:
        return NO_ROWS
    without = unavailable(rows)
    skipped = [row for found in without.values() for row in found]
    shown = [row for row in rows if row not in skipped]
    table = configurations(shown, usual_columns(shown))
    common = {
        column.key: f"{column.key.replace('_', ' ')} {column.cells[0]}"
        for column in table.columns
        if column.key in IDENTITY_COLUMNS[1:] and len({*column.cells}) == 1 < len(shown)
    }
    kept = table.without(common)
    keys = [column.key for column in kept.columns]
    others = [key for key in keys if key not in (*IDENTITY_COLUMNS, *MOST_IMPORTANT)]
    order = [*reversed(others), *reversed(MOST_IMPORTANT[1:])]
    places = {key: place for place, key in enumerate(order, 1)}
    ranked = tuple(replace(column, leaves=places.get(column.key, 0)) for column in kept.columns)
    text, left = replace(kept, columns=ranked).text(width)
    said = [f"All {len(shown):,} rows: {', '.join(common.values())}"] if common else []
    above = [filled(line, width) for line in (*without, *said)]
    below = [filled(not_shown(left, width, "--columns"), width)] if left else []
    return "\n".join([*above, text, *below, ""])


def configurations(rows: Rows, columns: Sequence[Metric], *, with_reasons: bool = False) -> Table:
    """A row for each configuration. Headers name the items that the rows count; if they count
    several, such as images and tokens, each speed has its unit.

    Without a column of their own, backends follow their implementation, "ddp/shm".
    """
    items = {row.item for row in rows if row.throughput} or {row.item for row in rows}
    item = one_line(items.pop()) if len(items) == 1 else "items"
    keys = {column.key for column in columns}

    def text(column: Metric, row: Row) -> str:
        found = cell(column, row)
        if column.key == "implementation":
            name = found if "backend" in keys else row.series
            return f"{name}*" if row.implementation == INDEPENDENT else name
        if column.key == "efficiency" and "speedup" in keys:
            return write(row.efficiency, "share")
        if column.key == "images_per_second" and item == "items":
            return f"{found} {row.throughput.unit}" if row.throughput and found != NOISY else found
        if column.key == "status" and with_reasons and row.reason:
            return f"{row.status.words}: {row.reason}"
        return found

    table = [metric_column(one, rows, [text(one, row) for row in rows]) for one in columns]
    name = item[:1].upper() + item[1:]
    return Table(
        columns=tuple(replace(one, header=one.header.replace("{Item}", name)) for one in table),
        footnote=UPPER_BOUND if any(row.implementation == INDEPENDENT for row in rows) else "",
    )


def claim_columns(rows: Rows) -> tuple[Metric, ...]:
    """A column for everything that a published file claims and nobody measured."""

    def claim(name: str) -> Metric:
        words = name.removesuffix("_claimed").replace("_", " ")
        header = _UNITS.sub(lambda found: found[0].upper(), words[:1].upper() + words[1:])
        return Metric(
            key=name,
            header=f"{header} (claimed)",
            meaning="As the source of the numbers states it; not measured here.",
            shown=True,
            row=lambda row: row.claims.get(name),
        )

    return tuple(map(claim, dict.fromkeys(name for row in rows for name in row.claims)))


def usual_columns(rows: Rows) -> tuple[Metric, ...]:
    """The columns that every table has by default, a terminal's and the page's: those with a value,
    the status where some row did not simply complete, and the final loss if all rows took the same
    number of steps."""
    unsuited = set()
    if rows and all(row.status is Status.COMPLETED and row.reason is None for row in rows):
        unsuited.add("status")
    if len({row["timed_steps"] for row in rows if row["final_loss"]}) > 1:
        unsuited.add("final_loss")
    usual = (column for column in TABLE_METRICS.values() if column.shown)
    return tuple(
        column
        for column in (*usual, *claim_columns(rows))
        if column.key not in unsuited
        and (not rows or any(cell(column, row) != MISSING for row in rows))
    )


def parse_columns(text: str) -> tuple[Metric, ...]:
    """Reads --columns a,b,c: these columns, after those that identify a row unless one of them is
    among these. Raises UnknownName or UsageError. ("seed" is a layout of its own.)"""
    asked = parse_keys(text, TABLE_METRICS, layouts=(SEED,))
    identity = () if {*asked} & {*IDENTITY_COLUMNS} else IDENTITY_COLUMNS
    return tuple(TABLE_METRICS[name] for name in (*identity, *asked))


def parse_keys(text: str, known: Iterable[str], *, layouts: Sequence[str] = ()) -> tuple[str, ...]:
    """Parse a list of keys; `layouts` are other values of --columns, which stand alone."""
    names, keys = tuple(name.strip() for name in text.split(",")), tuple(known)
    asked = option_words("columns", text)
    for name in names:
        if name in layouts:
            raise UsageError(f"{asked}: {name} is a table of its own; expected it alone")
        if name not in keys:
            raise UnknownName(option_words("columns"), name, [*keys, *layouts])
        if names.count(name) > 1:
            raise UsageError(f"{asked}: expected each column once, got {name} twice")
    return names


def frame_text(frame: pd.DataFrame, format: str, columns: str | None = None) -> str:
    """The rows for programs, as CSV or JSON, with these `columns`, all unless given.

    CSV has a header of keys and one line per row; missing values are empty, and an apostrophe
    stands before every text that a spreadsheet would compute. JSON is an array with one object per
    row; missing values are null and infinity is the text "inf". Raises UsageError for a format of
    documents, and UnknownName for an unknown column.
    """
    from pandas.api.types import is_numeric_dtype

    if columns is not None:
        frame = frame[list(parse_keys(columns, map(str, frame.columns)))]

    if format == "json":
        plain = frame.astype(object).where(frame.notna(), None)
        plain = plain.replace({math.inf: "inf", -math.inf: "-inf"})
        return json_text(plain.to_dict("records"))
    if format != "csv":
        raise UsageError(f"{format} has rows of configurations only; expected csv or json")

    def inert(value: Any) -> Any:
        is_formula = isinstance(value, str) and value.startswith(_FORMULA)
        return f"'{value}" if is_formula else value

    # Only the categories of a categorical column are seen; millions of steps share them.
    texts = {
        name: column.map(inert, na_action="ignore")
        for name, column in frame.items()
        if not is_numeric_dtype(column.dtype)
    }
    return str(frame.assign(**texts).to_csv(index=False, lineterminator="\n"))

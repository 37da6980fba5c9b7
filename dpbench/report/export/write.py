"""Writes the rows of an export in one of its formats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import IO, TextIO

from dpbench.messages import one_line
from dpbench.report import seed_table
from dpbench.report.export.data import WRITERS, write_parquet
from dpbench.report.export.source import ExportSource
from dpbench.report.table import Table, TableCell, TableColumn, TableRow
from dpbench.report.tables import SEED, parse_keys, render
from dpbench.report.terminal import write_table
from dpbench.report.values import write

SUFFIXES = {
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "jsonl",
    ".md": "markdown",
    ".tex": "latex",
    ".html": "html",
    ".parquet": "parquet",
}
EXPORT_FORMATS = tuple(SUFFIXES.values())


def export_columns(source: ExportSource, columns: str | None) -> tuple[str, ...]:
    """The keys that are kept; raises UnknownName or UsageError."""
    keys = tuple(field.key for field in source.fields)
    if columns is None:
        return keys
    seed = source.summaries is not None
    if seed and columns == SEED:
        return seed_table.KEYS
    return parse_keys(columns, keys, layouts=(SEED,) if seed else ())


def export_text(
    source: ExportSource, format: str, columns: str | None
) -> tuple[Callable[[TextIO], None], tuple[str, ...]]:
    """A function that writes the text, and the notes that its format has no room for.

    Raises UnknownName or UsageError for the columns.
    """
    if format in WRITERS:
        keys = export_columns(source, columns)
        notes = column_notes(source, columns)
        return lambda file: WRITERS[format](file, keys, source.rows), notes
    if source.summaries is not None:
        shown = column_notes(source, columns) if columns not in (None, SEED) else ()
        table = render(
            source.summaries, format=format, columns=columns, notes=shown, caption=source.caption
        )
        return lambda file: _write(file, table.text), table.notes_aside
    text = write_table(_text_table(source, export_columns(source, columns)), format)
    return lambda file: _write(file, f"{text}\n"), ()


def column_notes(source: ExportSource, columns: str | None) -> tuple[str, ...]:
    """Notes that the kept keys need."""
    if columns == SEED and source.summaries is not None:
        return seed_table.notes(source.summaries)
    kept = export_columns(source, columns)
    return source.budget_notes if any(map(_is_at_equal, kept)) else ()


def _is_at_equal(key: str) -> bool:
    return key.startswith("loss_at_equal")


def export_parquet(source: ExportSource, file: IO[bytes], *, columns: str | None) -> None:
    """Raises UnknownName, UsageError, OSError."""
    known = {field.key: field for field in source.fields}
    write_parquet(file, [known[key] for key in export_columns(source, columns)], source.rows)


def _text_table(source: ExportSource, keys: Sequence[str]) -> Table:
    """Measured numbers as they are to six digits: one observation has no interval."""
    kinds = {field.key: field.kind for field in source.fields}
    return Table(
        columns=tuple(TableColumn(key=key, header=key, text=kinds[key] == "text") for key in keys),
        rows=tuple(
            TableRow(cells=tuple(TableCell(text=one_line(write(row[key]))) for key in keys))
            for row in source.rows
        ),
        caption=source.caption,
    )


def _write(file: TextIO, text: str) -> None:
    file.write(text)

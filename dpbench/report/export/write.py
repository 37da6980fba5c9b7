"""Writes the rows of an export in one of its formats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TextIO

from dpbench.analysis.fields import Plain
from dpbench.report.cells import one_line
from dpbench.report.columns import SEED, parse_keys
from dpbench.report.export.data import WRITERS
from dpbench.report.export.parquet import write_parquet
from dpbench.report.export.source import ExportSource
from dpbench.report.layouts import write_layout
from dpbench.report.numbers import MISSING
from dpbench.report.seed_table import KEYS as SEED_KEYS
from dpbench.report.tables import render
from dpbench.report.text_table import TextColumn, TextTable

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
        return SEED_KEYS
    return parse_keys(columns, keys, layouts=(SEED,) if seed else ())


def export_text(
    source: ExportSource, format: str, columns: str | None
) -> tuple[Callable[[TextIO], None], tuple[str, ...]]:
    """What writes the text, and the notes that its format has no room for.

    Raises UnknownName or UsageError for the columns.
    """
    if format in WRITERS:
        keys = export_columns(source, columns)
        return lambda file: WRITERS[format](file, keys, source.rows), ()
    if source.summaries is not None:
        table = render(source.summaries, format=format, columns=columns, caption=source.caption)
        return lambda file: _write(file, table.text), table.notes_aside
    text = write_layout(_text_table(source, export_columns(source, columns)), format)
    return lambda file: _write(file, f"{text}\n"), ()


def export_parquet(source: ExportSource, path: Path, *, columns: str | None) -> None:
    """Raises UnknownName, UsageError, OSError."""
    known = {field.key: field for field in source.fields}
    write_parquet(path, [known[key] for key in export_columns(source, columns)], source.rows)


def _text_table(source: ExportSource, keys: Sequence[str]) -> TextTable:
    kinds = {field.key: field.kind for field in source.fields}
    rows = list(source.rows)
    return TextTable(
        columns=tuple(
            TextColumn(
                key=key,
                header=key,
                cells=tuple(_cell(row[key]) for row in rows),
                words=kinds[key] == "text",
            )
            for key in keys
        ),
        caption=source.caption,
    )


def _cell(value: Plain) -> str:
    """A measured number as it is to six digits: one observation has no interval."""
    if value is None:
        return MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.6g}" if isinstance(value, float) else one_line(str(value))


def _write(file: TextIO, text: str) -> None:
    file.write(text)

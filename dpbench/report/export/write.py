"""An export: the rows of one level, from a results folder or a published file, in any format."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TextIO

from dpbench import store, units
from dpbench.analysis.comparisons.comparability import environment_notes
from dpbench.analysis.configuration import ConfigurationSummary
from dpbench.analysis.fields import Field, Plain
from dpbench.analysis.frames import (
    Rows,
    collective_rows,
    final_records,
    rank_rows,
    step_rows,
    trial_rows,
)
from dpbench.analysis.levels import LEVELS, configuration_row
from dpbench.analysis.subject import Subject, of_folder, of_published
from dpbench.errors import UnknownName, UsageError
from dpbench.messages import one_line
from dpbench.records.trial import TrialRecord
from dpbench.report.export.formats import WRITERS, write_parquet
from dpbench.report.table import Table, TableCell, TableColumn, TableRow
from dpbench.report.tables import parse_keys, render
from dpbench.report.terminal import write_table
from dpbench.report.torch_ddp_table import TORCH_DDP_KEYS, TORCH_DDP_LAYOUT, torch_ddp_notes
from dpbench.report.values import write

TIDY: dict[str, Callable[[Iterable[TrialRecord]], Rows]] = {
    "trial": trial_rows,
    "rank": rank_rows,
    "step": step_rows,
}
NO_TRIAL = "no trial has ended yet: there are no rows"


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportSource:
    """The rows of one level; they may be read once."""

    fields: tuple[Field, ...]
    rows: Iterable[Mapping[str, Plain]]
    caption: str
    summaries: tuple[ConfigurationSummary, ...] | None = None
    """Summaries of configurations, which documents show with their intervals."""
    warnings: tuple[str, ...] = ()
    """Data that could not be read, and warnings before a number is believed."""
    notes: tuple[str, ...] = ()
    """Notes on data without a row."""


def open_source(path: Path, level: str) -> ExportSource:
    """Reads a results folder, or a .csv file of configurations.

    Raises UnknownName for a level, UsageError for one that the path does not have, StoreError.
    """
    if level not in LEVELS:
        raise UnknownName("level", level, LEVELS)
    if path.suffix.lower() == ".csv" and not path.is_dir():
        if level != "configuration":
            raise UsageError(
                f"--level {level}: {path} has configurations only; expected a results folder"
            )
        return _of_configurations(of_published(path), path.stem)
    if path.is_file():
        raise UsageError(f"{path}: expected a results folder or a .csv file")
    if level == "collective":
        return _of_collectives(path)
    sweep = store.load(path)
    named = ", ".join(one.architecture for one in sweep.spec.workloads)
    name = f"{path.resolve().name}: {named}"
    if level == "configuration":
        return _of_configurations(of_folder(sweep), name, sweep.warnings)
    return ExportSource(
        fields=LEVELS[level],
        rows=TIDY[level](sweep.records),
        caption=f"{name}, a row a {level}",
        warnings=(*sweep.warnings, *environment_notes(sweep.records, sweep.environments)),
        notes=tuple(_without_rows(level, sweep.records)),
    )


def _of_configurations(subject: Subject, name: str, unread: tuple[str, ...] = ()) -> ExportSource:
    rows = subject.rows
    return ExportSource(
        fields=LEVELS["configuration"],
        rows=map(configuration_row, rows),
        caption=f"{name}, {units.counted(len(rows), 'configuration')}",
        summaries=rows,
        warnings=(*unread, *subject.warnings),
        notes=(*_claims(rows), *([] if rows else [NO_TRIAL])),
    )


def _of_collectives(path: Path) -> ExportSource:
    found = store.load_collectives(path)
    return ExportSource(
        fields=LEVELS["collective"],
        rows=collective_rows(found.records),
        caption=f"{path.resolve().name}, collectives",
        warnings=found.warnings,
    )


def _claims(rows: Sequence[ConfigurationSummary]) -> Iterable[str]:
    if names := dict.fromkeys(name for row in rows for name, _ in row.claims):
        yield f"claims of the source are not keys; documents show them: {', '.join(names)}"


def _without_rows(level: str, records: Sequence[TrialRecord]) -> Iterable[str]:
    if not records:
        yield NO_TRIAL
    final = list(final_records(records))
    if again := len(records) - len(final):
        yield f"{units.counted(again, 'trial')} run again; the last record counts"
    empty = sum(not record.ranks for record in final)
    if level != "trial" and empty:
        trials = units.counted(len(final), "trial")
        yield f"{empty} of {trials} measured nothing and have no row; --level trial says why"


SUFFIXES = {
    ".csv": "csv",
    ".json": "json",
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
    layouts = () if source.summaries is None else (TORCH_DDP_LAYOUT,)
    if columns in layouts:
        return TORCH_DDP_KEYS
    return parse_keys(columns, keys, layouts=layouts)


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
        shown = column_notes(source, columns) if columns not in (None, TORCH_DDP_LAYOUT) else ()
        table = render(
            source.summaries, format=format, columns=columns, notes=shown, caption=source.caption
        )
        return lambda file: _write(file, table.text), table.notes_aside
    text = write_table(_text_table(source, export_columns(source, columns)), format)
    return lambda file: _write(file, f"{text}\n"), ()


def column_notes(source: ExportSource, columns: str | None) -> tuple[str, ...]:
    """Notes that the kept keys need."""
    if columns == TORCH_DDP_LAYOUT and source.summaries is not None:
        return torch_ddp_notes(source.summaries)
    return ()


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

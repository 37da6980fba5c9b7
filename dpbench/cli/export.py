"""`dpbench export`: results at any level of detail, in any format, for other programs."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer

from dpbench.cli.options import LATEST_RESULTS
from dpbench.errors import UnknownName, UsageError
from dpbench.files import write_file
from dpbench.messages import say, warn

if TYPE_CHECKING:
    from typing import TextIO

    from dpbench.report.export.write import ExportSource


def export(
    path: Annotated[
        Path | None,
        typer.Argument(
            metavar="PATH",
            show_default=LATEST_RESULTS,
            help="Results folder, or a CSV file of published results.",
        ),
    ] = None,
    level: Annotated[
        str | None,
        typer.Option(
            "--level",
            metavar="LEVEL",
            show_default="configuration",
            help="Level of a row: configuration, trial, rank, step or collective.",
        ),
    ] = None,
    format: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="NAME",
            show_default="as FILE ends, else csv",
            help="Format: csv, json, parquet, markdown, latex or html.",
        ),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(
            "--columns",
            metavar="A,B,C",
            show_default="all; of configurations in a document, those of the report",
            help="Columns to keep, by key, in this order.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", metavar="FILE", show_default="stdout", help="Write to this file."),
    ] = None,
    schema: Annotated[
        str | None,
        typer.Option(
            "--schema",
            metavar="NAME",
            help="Print a JSON Schema, e.g. of trial-record or step-row.",
        ),
    ] = None,
) -> None:
    """Export results as CSV, JSON, Parquet, Markdown and other formats."""
    if output is not None and output.is_dir():
        raise UsageError(f"--output {output}: that is a folder; expected the name of a file")
    if schema is not None:
        beside = {"PATH": path, "--level": level, "--format": format, "--columns": columns}
        _export_schema(schema, beside, output)
        return
    name = _format(format, output)
    if path is None:
        from dpbench.run.results import latest_folder

        path = latest_folder("export", sweeps_only=level != "collective")
    from dpbench.report.export.write import open_source

    source = open_source(path, level or "configuration")
    notes = _export(source, name, columns, output)
    warn(*source.warnings)
    say(*source.notes, *notes)


def _export_schema(name: str, beside: Mapping[str, object], output: Path | None) -> None:
    from dpbench.report.export.schemas import schema_text

    if given := [option for option, value in beside.items() if value is not None]:
        raise UsageError(
            f"--schema {name} is the same for all results; leave {' and '.join(given)} out"
        )
    text = schema_text(name)
    _write(lambda file: file.write(text), output)


def _format(format: str | None, output: Path | None) -> str:
    """The requested format, else that of the file's suffix, else CSV."""
    from dpbench.report.export.write import EXPORT_FORMATS, SUFFIXES

    suffix = "" if output is None or not _is_regular(output) else output.suffix.lower()
    if format is None and suffix and suffix not in SUFFIXES:
        raise UsageError(
            f"--output {output}: expected a name that ends in one of {', '.join(SUFFIXES)}, or "
            "--format NAME"
        )
    name = format or SUFFIXES.get(suffix, "csv")
    if name not in EXPORT_FORMATS:
        raise UnknownName("format", name, EXPORT_FORMATS)
    if name == "parquet" and output is None:
        raise UsageError("--format parquet is not text; give it a file with --output FILE")
    return name


def _is_regular(path: Path) -> bool:
    """Or will be: the names of pipes and devices say nothing."""
    return path.is_file() or not path.exists()


def _export(
    source: ExportSource, format: str, columns: str | None, output: Path | None
) -> tuple[str, ...]:
    """Writes to the file or to stdout; returns notes.

    Raises UnknownName or UsageError for columns, StoreError for a file that cannot be written.
    """
    from dpbench.report.export.write import column_notes, export_parquet, export_text

    if format == "parquet" and output is not None:
        write_file(output, partial(export_parquet, source, columns=columns))
        return column_notes(source, columns)
    write, notes = export_text(source, format, columns)
    _write(write, output)
    return notes


def _write(write: Callable[[TextIO], object], output: Path | None) -> None:
    if output is None:
        write(sys.stdout)
        return

    def to_file(file: IO[bytes]) -> None:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="")
        write(text)
        text.detach()  # with what it has held back written; closing it would close the file

    write_file(output, to_file)

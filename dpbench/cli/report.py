"""`dpbench report`: results as a table, a page with charts, or rows for other programs."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpbench.cli.options import (
    LATEST_RESULTS,
    JsonFormat,
    OnlyBackends,
    OnlyBatchSizes,
    OnlyGroupSizes,
    OnlyImplementations,
    format_name,
)
from dpbench.cli.show_results import (
    open_in_browser,
    print_collectives,
    print_rows,
    print_screen,
    report_folder,
    save_report,
    show_collectives,
)
from dpbench.errors import UnknownName, UsageError
from dpbench.files import write_file
from dpbench.messages import say, warn
from dpbench.run.results import RowFilter, filter_choices, is_table, parse_filter, read_subject

if TYPE_CHECKING:
    import pandas as pd

    from dpbench.analysis.subject import Subject
    from dpbench.report.document import WrittenReport


def output_path(text: str) -> Path:
    """Refuses what an unset variable leaves, which would be the current folder."""
    if not text:
        raise UsageError("--output: expected a folder or a file, got nothing")
    return Path(text)


def report(
    path: Annotated[
        Path | None,
        typer.Argument(
            metavar="PATH",
            show_default=LATEST_RESULTS,
            help="Results folder, or a CSV file of results.",
        ),
    ] = None,
    format: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="NAME",
            show_default="as --output ends, else text",
            help="Format: text, markdown, latex, html, csv, json or parquet.",
        ),
    ] = None,
    level: Annotated[
        str | None,
        typer.Option(
            "--level",
            metavar="NAME",
            show_default="configuration",
            help="One row per configuration, trial, rank, step or collective.",
        ),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(
            "--columns",
            metavar="A,B,C",
            help="Columns to show, by JSON key; seed: the four of torch-ddp's table.",
        ),
    ] = None,
    charts: Annotated[bool, typer.Option("--charts/--no-charts", help="Draw the charts.")] = True,
    json: JsonFormat = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            metavar="PATH",
            parser=output_path,
            show_default="PATH/report",
            help="Folder for the report, or a .csv, .json, .md, .tex, .html or .parquet file.",
        ),
    ] = None,
    open: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Also print how to read the numbers.")
    ] = False,
    implementations: OnlyImplementations = None,
    backends: OnlyBackends = None,
    group_sizes: OnlyGroupSizes = None,
    batch_sizes: OnlyBatchSizes = None,
) -> None:
    """Show results as a table, and write an HTML page with charts.

    dpbench report results/demo --open

    dpbench report results/demo --level step --output steps.parquet

    With --format, --level or a file to write, only those rows are written. Options that choose
    rows apply to what is printed; the page always has all rows.
    """
    from dpbench.report.exports import check_level

    wanted = parse_filter(
        implementations=implementations,
        backends=backends,
        group_sizes=group_sizes,
        batch_sizes=batch_sizes,
    )
    level = check_level(level or "configuration")
    format, file = _rows_file(format_name(format, json=json), level, output)
    if path is None:
        from dpbench.run.results import latest_folder

        path = latest_folder("report", sweeps_only=False)
    if path.is_file() and not is_table(path):
        raise UsageError(f"{path}: expected a results folder or a .csv file")
    if level != "configuration":
        frame = _rows_of_level(path, level, wanted, columns)
        format = "csv" if format in (None, "text") else format
        _write_frame(frame, format, file, f"{path.name}, one row per {level}")
        return
    if format is not None and format != "text":
        _write_configurations(path, wanted, format, columns, file)
        return
    if output is not None and output.exists() and not output.is_dir():
        raise UsageError(f"--output {output}: expected a folder, got a file")
    if open and output is None and is_table(path):
        raise UsageError(f"--open: nothing is written of {path} without --output DIR; add it")
    subject = read_subject(path)
    folder = output or (None if is_table(path) else report_folder(path))
    written: WrittenReport | None = None
    if subject.sweep is None and subject.collectives is not None:
        if columns is not None:
            raise UsageError(f"--columns {columns}: {path} holds collectives only; leave it out")
        written = show_collectives(subject.collectives, as_json=False, charts=charts, folder=folder)
    else:
        results = None if is_table(path) else path
        print_screen(
            _only(wanted, subject), columns, page_folder=folder, results=results, verbose=verbose
        )
        if folder is not None:
            written = save_report(folder, subject, charts=charts)
    if open and written is not None:
        open_in_browser(written.page.resolve().as_uri())


def _rows_file(
    format: str | None, level: str, output: Path | None
) -> tuple[str | None, Path | None]:
    """The format, and the file for rows that --output names; no file if it names a folder.

    Raises UnknownName for an unknown format, UsageError for an output that does not fit.
    """
    from dpbench.report.exports import EXPORT_FORMATS, SUFFIXES

    if format is not None and format not in ("text", *EXPORT_FORMATS):
        raise UnknownName("format", format, ("text", *EXPORT_FORMATS))
    is_rows = level != "configuration" or format not in (None, "text")
    if output is None or not (is_rows or (output.suffix and not output.is_dir())):
        return format, None
    if output.is_dir():
        raise UsageError(f"--output {output}: that is a folder; expected the name of a file")
    if format is None and output.suffix.lower() not in SUFFIXES:
        raise UsageError(
            f"--output {output}: expected a folder, or a file that ends in {', '.join(SUFFIXES)}"
        )
    return format or SUFFIXES[output.suffix.lower()], output


def _only(wanted: RowFilter, subject: Subject) -> Subject:
    """The subject with the wanted rows alone; raises UsageError if there are none."""
    if wanted == RowFilter():
        return subject
    rows = tuple(row for row in subject.rows if wanted.passes(row))
    if not rows:
        raise UsageError(f"{subject.name}: no such row; there are {filter_choices(subject.rows)}")
    explained = [
        (explanation, advice)
        for explanation, advice in zip(subject.explanations, subject.advice, strict=True)
        if wanted.passes(explanation.row)
    ]
    return replace(
        subject,
        rows=rows,
        explanations=tuple(explanation for explanation, _ in explained),
        advice=tuple(advice for _, advice in explained),
    )


def _write_configurations(
    path: Path, wanted: RowFilter, format: str, columns: str | None, file: Path | None
) -> None:
    subject = _only(wanted, read_subject(path))
    if subject.sweep is None and subject.collectives is not None:
        if format != "json" or file is not None:
            raise UsageError(f"{path} holds collectives only; expected --level collective")
        print_collectives(subject.collectives, as_json=True)
        return
    if format == "parquet":
        from dpbench.analysis.frames import to_frame
        from dpbench.report.exports import keep_columns

        _write_frame(keep_columns(to_frame(subject.rows), columns), format, file, subject.name)
    else:
        print_rows(subject, format, columns, file)


def _rows_of_level(path: Path, level: str, wanted: RowFilter, columns: str | None) -> pd.DataFrame:
    from dpbench.report.exports import keep_columns, level_frame

    if is_table(path):
        raise UsageError(f"--level {level}: {path} has configurations only; name a results folder")
    frame, notes, warnings = level_frame(path, level)
    warn(*warnings)
    say(*notes)
    for option, key in (
        ("implementations", "implementation"),
        ("backends", "backend"),
        ("group_sizes", "group_size"),
        ("batch_sizes", "batch_size"),
    ):
        if (values := getattr(wanted, option)) is not None:
            if key not in frame.columns:
                raise UsageError(f"--level {level} has no {key}; leave its option out")
            frame = frame[frame[key].astype(object).isin(values)]
    return keep_columns(frame, columns)


def _write_frame(frame: pd.DataFrame, format: str, file: Path | None, caption: str) -> None:
    from dpbench.report.exports import rows_text, write_rows

    if file is None:
        typer.echo(rows_text(frame, format, caption=caption), nl=False)
    else:
        write_file(file, partial(write_rows, frame, format, caption=caption))

"""`dpbench report`: the tables and the page of a results folder or of a published CSV file."""

from __future__ import annotations

from dataclasses import replace
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
    print_headline,
    print_table,
    report_folder,
    save_report,
)
from dpbench.errors import UsageError
from dpbench.messages import warn
from dpbench.run.results import RowFilter, filter_choices, is_table, parse_filter, read_subject

if TYPE_CHECKING:
    from dpbench.analysis.subject import Subject


def folder_of(text: str) -> Path:
    """Refuses what an unset variable leaves, which would be the current folder."""
    if not text:
        raise UsageError("--output: expected a folder, got nothing; '.' is the current one")
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
            show_default="text",
            help="Format: text, markdown, latex, html, csv or json.",
        ),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(
            "--columns",
            metavar="A,B,C",
            help="Columns of the table, by JSON key; seed: the four of torch-ddp's table.",
        ),
    ] = None,
    charts: Annotated[bool, typer.Option("--charts/--no-charts", help="Draw the charts.")] = True,
    json: JsonFormat = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            metavar="DIR",
            parser=folder_of,
            show_default="PATH/report; of a CSV file, nowhere",
            help="Folder for the page, the tables and the charts.",
        ),
    ] = None,
    open: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    implementations: OnlyImplementations = None,
    backends: OnlyBackends = None,
    group_sizes: OnlyGroupSizes = None,
    batch_sizes: OnlyBatchSizes = None,
) -> None:
    """Show results as a table, and write an HTML page with charts.

    dpbench report results/demo --open

    Options that choose rows apply to the printed table; the page always has all rows.
    """
    wanted = parse_filter(
        implementations=implementations,
        backends=backends,
        group_sizes=group_sizes,
        batch_sizes=batch_sizes,
    )
    format = format_name(format, json=json)
    if path is None:
        from dpbench.run.results import latest_folder

        path = latest_folder("report", sweeps_only=False)
    if path.is_file() and not is_table(path):
        raise UsageError(f"{path}: expected a results folder or a .csv file")
    if output is not None and output.exists() and not output.is_dir():
        raise UsageError(f"--output {output}: expected a folder, got a file")
    if open and output is None and is_table(path):
        raise UsageError(f"--open: nothing is written of {path} without --output DIR; add it")
    subject = read_subject(path)
    target = output or (None if is_table(path) else report_folder(path))
    _print(_only(wanted, subject), format, columns, target)
    written = None if target is None else save_report(target, subject, charts=charts)
    if open and written is not None:
        open_in_browser(written.page.resolve().as_uri())


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


def _print(subject: Subject, format: str | None, columns: str | None, folder: Path | None) -> None:
    """The trials first; in a format for other programs they are alone on stdout."""
    alone = subject.sweep is None and subject.collectives is not None
    if alone:
        _check_format_of_collectives(format, columns)
    else:
        print_table(subject, format, columns, folder)
    if subject.sweep is not None:
        print_headline(subject, aside=format is not None)
        warn(*subject.sweep.warnings)
    if subject.collectives is not None:
        if not alone and format is None:
            typer.echo()
        if alone or format is None:
            print_collectives(subject.collectives, as_json=format == "json")
        warn(*subject.collectives.warnings)


def _check_format_of_collectives(format: str | None, columns: str | None) -> None:
    if columns is not None:
        raise UsageError(
            f"--columns {columns}: the folder holds collectives only, which have one table; leave "
            "--columns out"
        )
    if format not in (None, "json"):
        raise UsageError(
            f"--format {format}: the folder holds collectives only; expected json, or leave it out"
        )

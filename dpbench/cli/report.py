"""dpbench report: the table and the charts of a results folder, or of a published CSV file."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpbench.cli.messages import warn
from dpbench.errors import UsageError

if TYPE_CHECKING:
    from dpbench.analysis.configuration import ConfigurationSummary
    from dpbench.records import TrialRecord
    from dpbench.report.document import WrittenReport
    from dpbench.store import StoredSweep

REPORT_FOLDER = "report"


def report(
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="A results folder, or a .csv file of results.")
    ],
    format: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="NAME",
            show_default="simple",
            help="csv, json, markdown, or any layout of tabulate.",
        ),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(
            "--columns",
            metavar="A,B,C",
            help="Columns to show, by their JSON keys; 'seed' for torch-ddp's four.",
        ),
    ] = None,
    charts: Annotated[
        bool, typer.Option("--charts/--no-charts", help="Draw the charts (PNG and SVG).")
    ] = True,
    json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            metavar="DIR",
            show_default="PATH/report; of a CSV file, nowhere",
            help="Where table and charts go.",
        ),
    ] = None,
) -> None:
    """Print the table of a sweep, and that of collectives, and write their report; nothing is
    measured again."""
    if json and format not in (None, "json"):
        raise UsageError(f"--json and --format {format} contradict each other; give one of them")
    wanted = "json" if json else format
    if path.suffix.lower() == ".csv" and not path.is_dir():
        show_published(path, format=wanted, columns=columns, charts=charts, folder=output)
        return
    if path.is_file():
        raise UsageError(f"{path}: expected a results folder or a .csv file")
    _show_folder(path, format=wanted, columns=columns, charts=charts, folder=output)


def _show_folder(
    path: Path, *, format: str | None, columns: str | None, charts: bool, folder: Path | None
) -> None:
    """The trials first; in a format for other programs they are alone on stdout."""
    from dpbench import store

    if not store.holds_collectives(path):
        show_sweep(store.load(path), format=format, columns=columns, charts=charts, folder=folder)
        return
    from dpbench.cli.collectives_report import show_collectives

    printed = True
    if store.holds_sweep(path):
        show_sweep(store.load(path), format=format, columns=columns, charts=charts, folder=folder)
        printed = format is None
        if printed:
            typer.echo()
    else:
        _check_format_of_collectives(format, columns)
    show_collectives(
        store.load_collectives(path),
        as_json=format == "json",
        printed=printed,
        charts=charts,
        folder=folder,
    )


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


def show_sweep(
    sweep: StoredSweep,
    *,
    format: str | None = None,
    columns: str | None = None,
    charts: bool = True,
    folder: Path | None = None,
) -> None:
    """Prints the table of a sweep to stdout, the rest to stderr; writes its report.

    Raises UnknownName or UsageError for a format or columns, StoreError if it cannot write.
    """
    from dpbench.analysis.environments import environment_notes
    from dpbench.analysis.hints import hints
    from dpbench.analysis.loss_agreement import agreement_notes, loss_agreements
    from dpbench.analysis.outcome import completed
    from dpbench.analysis.summary import summarize

    rows = summarize(
        sweep.records, environments=sweep.environments, target_loss=sweep.spec.target_loss
    )
    rows, budget_notes = _with_equal_budgets(rows, sweep.records, columns)
    notes = (
        *budget_notes,
        *environment_notes(sweep.records, sweep.environments),
        *(hint.text for hint in hints(sweep.records, sweep.environments)),
        *agreement_notes(loss_agreements(completed(sweep.records))),
        *_precision_notes(sweep.spec.precision, rows),
    )
    _print_table(rows, format, columns, notes)
    warn(*sweep.warnings)

    from dpbench.report.document import write_report

    target = folder or sweep.folder / REPORT_FOLDER
    written = write_report(
        target,
        rows,
        records=sweep.records,
        environments=sweep.environments,
        name=sweep.folder.resolve().name,
        notes=notes,
        charts=charts,
    )
    tell_where(target, written, charts=charts)


def _with_equal_budgets(
    rows: tuple[ConfigurationSummary, ...], records: Sequence[TrialRecord], columns: str | None
) -> tuple[tuple[ConfigurationSummary, ...], tuple[str, ...]]:
    """Only if their columns are wanted: they take as long as all the rest of the table."""
    if "loss_at_equal" not in (columns or ""):
        return rows, ()
    from dpbench.analysis.equal_budget import with_equal_budgets

    return with_equal_budgets(rows, records)


def _precision_notes(
    precision: float | None, rows: Sequence[ConfigurationSummary]
) -> tuple[str, ...]:
    if precision is None:
        return ()
    from dpbench.analysis.precision import precision_note

    return (precision_note([(row.label, row.throughput) for row in rows], precision),)


def show_published(
    path: Path,
    *,
    format: str | None = None,
    columns: str | None = None,
    charts: bool = True,
    folder: Path | None = None,
) -> None:
    """Prints the table of a CSV file; writes a report only into a folder that is named."""
    from dpbench.analysis.published import from_csv

    rows = from_csv(path)
    _print_table(rows, format, columns, ())
    if folder is not None:
        from dpbench.report.document import write_report

        written = write_report(folder, rows, name=path.name, charts=charts)
        tell_where(folder, written, charts=charts)


def _print_table(
    rows: Sequence[ConfigurationSummary],
    format: str | None,
    columns: str | None,
    notes: Sequence[str],
) -> None:
    from dpbench.report.tables import render

    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    table = render(rows, format=format, columns=columns, notes=notes, width=width)
    typer.echo(table.text, nl=False)
    for note in table.notes_aside:
        typer.echo(note, err=True)


def tell_where(folder: Path, written: WrittenReport, *, charts: bool) -> None:
    from dpbench.report.document import CHART_FOLDER

    for remark in written.remarks:
        typer.echo(remark, err=True)
    drawn = f", charts in {folder / CHART_FOLDER}" if charts else ""
    typer.echo(f"tables in {folder}{drawn}", err=True)

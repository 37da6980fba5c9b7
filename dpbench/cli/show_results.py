"""Prints results and writes their report, for `dpbench report` and for commands that measure."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from dpbench.files import as_text, folder_inside, write_file
from dpbench.messages import say, warn
from dpbench.report.progress.terminal import table_limit
from dpbench.run.results import read_subject, subject_of

if TYPE_CHECKING:
    from dpbench.analysis.subject import Subject
    from dpbench.report.document import WrittenReport
    from dpbench.store import StoredCollectives, StoredSweep


def show_sweep(
    sweep: StoredSweep,
    *,
    format: str | None = None,
    columns: str | None = None,
    charts: bool = True,
    folder: Path | None = None,
    verbose: bool = False,
) -> None:
    """Prints a sweep's results to stdout and writes its report.

    Raises UnknownName or UsageError for a format or columns, StoreError if it cannot write.
    """
    subject = subject_of(sweep)
    target = folder or report_folder(sweep.folder)
    if format is None:
        print_screen(subject, columns, page_folder=target, results=sweep.folder, verbose=verbose)
    else:
        print_rows(subject, format, columns, None)
    save_report(target, subject, charts=charts)


def report_folder(results: Path) -> Path:
    """The report's path for a results folder; raises StoreError if that is no folder."""
    from dpbench.report.document import REPORT_FOLDER

    return folder_inside(results, REPORT_FOLDER)


def print_screen(
    subject: Subject,
    columns: str | None,
    *,
    page_folder: Path | None,
    results: Path | None,
    verbose: bool,
) -> None:
    """Prints the verdict, a warning, the table, and where to read on; notes if `verbose`."""
    from dpbench.report.document import PAGE
    from dpbench.report.screen import last_line, notes_text, screen

    width = table_limit()
    shown = screen(subject, columns=columns, width=width)
    typer.echo(shown.text, nl=False)
    if verbose and shown.notes:
        typer.echo(f"\n{notes_text(shown.notes, width)}")
    page = None if page_folder is None else page_folder / PAGE
    if line := last_line(page, results, () if verbose else shown.notes):
        typer.echo(f"\n{line}")


def print_rows(subject: Subject, format: str, columns: str | None, file: Path | None) -> None:
    """Prints the rows in a format for documents or programs, or writes them to a file; notes go
    to stderr."""
    from dpbench.report.tables import render

    warn(*(() if subject.sweep is None else subject.sweep.warnings))
    caption = "" if format == "markdown" else subject.name
    table = render(subject.rows, format=format, columns=columns, caption=caption)
    if file is None:
        typer.echo(table.text, nl=False)
    else:
        write_file(file, as_text(table.text))
    for note in table.notes_aside:
        typer.echo(note, err=True)


def save_report(folder: Path, subject: Subject, *, charts: bool) -> WrittenReport:
    """Writes the report of one subject; raises StoreError if it cannot."""
    from dpbench.report.document import write_report

    return write_report(folder, subject, charts=charts)


def open_in_browser(address: str) -> None:
    """Prints the address if there is no browser that could show it."""
    import webbrowser

    if not webbrowser.open(address):
        say(f"no browser was found; open {address} in one")


def print_collectives(stored: StoredCollectives, *, as_json: bool) -> None:
    """Prints the table, or its data for programs, to stdout."""
    from dpbench.report.collectives import stored_answer

    typer.echo(stored_answer(stored).render(as_json=as_json), nl=False)


def show_collectives(
    stored: StoredCollectives, *, as_json: bool, charts: bool = True, folder: Path | None = None
) -> WrittenReport:
    """Prints them and writes the report of their folder, which may hold a sweep as well.

    Raises StoreError if it cannot write.
    """
    print_collectives(stored, as_json=as_json)
    warn(*stored.warnings)
    target = folder or report_folder(stored.folder)
    written = save_report(target, read_subject(stored.folder), charts=charts)
    if not as_json:
        typer.echo(f"\nReport: {written.page}")
    return written

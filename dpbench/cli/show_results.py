"""Prints results and writes their report, for `dpbench report` and for commands that measure."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from dpbench.files import folder_inside
from dpbench.messages import say, warn
from dpbench.report.progress.terminal import table_limit, table_width
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
) -> None:
    """Prints the table of a sweep and its headline to stdout, the rest to stderr; writes its
    report. Beside a format for other programs, the headline goes to stderr too.

    Raises UnknownName or UsageError for a format or columns, StoreError if it cannot write.
    """
    subject = subject_of(sweep)
    target = folder or report_folder(sweep.folder)
    print_table(subject, format, columns, target)
    print_headline(subject, aside=format is not None)
    warn(*sweep.warnings)
    save_report(target, subject, charts=charts)


def report_folder(results: Path) -> Path:
    """The report's path for a results folder; raises StoreError if that is no folder."""
    from dpbench.report.document import REPORT_FOLDER

    return folder_inside(results, REPORT_FOLDER)


def print_headline(subject: Subject, *, aside: bool) -> None:
    """Print the main results of a sweep, a sentence for each work: below the table, or on
    stderr."""
    import textwrap

    from dpbench.report.headline import sentences

    said, width = sentences(subject.headlines), table_width()
    filled = (textwrap.fill(one, width, break_on_hyphens=False) for one in said)
    lines = "\n".join(filled)
    typer.echo(lines if aside else f"\n{lines}\n", err=aside)


def print_table(
    subject: Subject, format: str | None, columns: str | None, folder: Path | None
) -> None:
    """Prints the table to stdout, unless it is one for people and has no rows; `folder` will hold
    the report, with the table as wide as it is."""
    from dpbench.report.document import WHOLE_TABLE
    from dpbench.report.tables import render

    table = render(
        subject.rows,
        format=format,
        columns=columns,
        notes=subject.notes,
        width=table_limit(),
        whole=None if folder is None else str(folder / WHOLE_TABLE),
    )
    if subject.rows or format is not None:
        typer.echo(table.text, nl=False)
    for note in table.notes_aside:
        typer.echo(note, err=True)


def save_report(folder: Path, subject: Subject, *, charts: bool) -> WrittenReport:
    """Writes the report of one subject and says where; StoreError if it cannot."""
    from dpbench.report.document import CHART_FOLDER, write_report

    written = write_report(folder, subject, charts=charts)
    for remark in written.remarks:
        typer.echo(remark, err=True)
    drawn = f", charts in {folder / CHART_FOLDER}" if charts else ""
    typer.echo(f"page: {written.page}; tables in {folder}{drawn}", err=True)
    return written


def open_in_browser(address: str) -> None:
    """Says where the page is if there is no browser that could show it."""
    import webbrowser

    if not webbrowser.open(address):
        say(f"no browser was found; open {address} in one")


def print_collectives(stored: StoredCollectives, *, as_json: bool) -> None:
    """Prints the table, or its data for programs, to stdout."""
    from dpbench.report.collectives import stored_answer

    typer.echo(stored_answer(stored).render(as_json=as_json), nl=False)


def show_collectives(stored: StoredCollectives, *, as_json: bool, charts: bool = True) -> None:
    """Prints them and writes the report of their folder, which may hold a sweep as well.

    Raises StoreError if it cannot write.
    """
    print_collectives(stored, as_json=as_json)
    warn(*stored.warnings)
    save_report(report_folder(stored.folder), read_subject(stored.folder), charts=charts)

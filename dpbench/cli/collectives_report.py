"""What `dpbench comm` and `dpbench report` show of collectives."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from dpbench.cli.messages import warn
from dpbench.cli.shown import report_folder, write
from dpbench.cli.subjects import read_subject

if TYPE_CHECKING:
    from dpbench.store import StoredCollectives


def print_collectives(stored: StoredCollectives, *, as_json: bool) -> None:
    """The table, or the same for programs, on stdout."""
    from dpbench.analysis.environments import environment_notes
    from dpbench.report.collectives import answer

    notes = environment_notes(stored.records, stored.environments, noun="measurement")
    typer.echo(answer(stored.records, notes=notes).shown(as_json=as_json), nl=False)


def show_collectives(stored: StoredCollectives, *, as_json: bool, charts: bool = True) -> None:
    """Prints them and writes the report of their folder, which may hold a sweep as well.

    Raises StoreError if it cannot write.
    """
    print_collectives(stored, as_json=as_json)
    warn(*stored.warnings)
    write(report_folder(stored.folder), read_subject(stored.folder), charts=charts)

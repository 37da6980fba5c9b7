"""What `dpbench comm` and `dpbench report` show of collectives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from dpbench.cli.messages import warn
from dpbench.cli.report import REPORT_FOLDER, tell_where

if TYPE_CHECKING:
    from dpbench.store import StoredCollectives


def show_collectives(
    stored: StoredCollectives,
    *,
    as_json: bool,
    printed: bool = True,
    charts: bool = True,
    folder: Path | None = None,
) -> None:
    """Prints the table to stdout unless something else has it, and writes the report.

    Raises StoreError if it cannot write.
    """
    from dpbench.analysis.environments import environment_notes
    from dpbench.report.collective_document import write_collectives
    from dpbench.report.collectives import as_data, render

    notes = environment_notes(stored.records, stored.environments, noun="measurement")
    if printed and as_json:
        typer.echo(json.dumps(as_data(stored.records), indent=1, ensure_ascii=False))
    elif printed:
        typer.echo(render(stored.records, notes=notes), nl=False)
    warn(*stored.warnings)
    target = folder or stored.folder / REPORT_FOLDER
    written = write_collectives(
        target,
        stored.records,
        environments=stored.environments,
        name=stored.folder.resolve().name,
        notes=notes,
        charts=charts,
    )
    tell_where(target, written, charts=charts)

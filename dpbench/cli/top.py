"""`dpbench top`: look at a sweep that runs in another terminal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpbench.cli.width import table_width

if TYPE_CHECKING:
    from rich.console import Console

    from dpbench.cli.attached import AttachedSweep

EXIT_STATUSES = """Exit status: 0 it runs, or all its trials are stored, as precisely as was asked
for; 1 it ended before that; 2 usage, or DIR is not the folder of a sweep."""
LOOKS_PER_SECOND = 2


def top(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The results folder of a sweep.")],
    once: Annotated[bool, typer.Option("--once", help="Print how it stands, and leave.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="How it stands, as JSON.")] = False,
) -> int:
    """Watch a sweep that runs in another terminal; Ctrl-C leaves it alone.

    Without a terminal to draw on it prints once how the sweep stands.
    """
    from dpbench.cli.attached import AttachedSweep

    sweep = AttachedSweep(folder)
    sweep.look()
    if as_json:
        _print_json(sweep)
    else:
        _show(sweep, once=once)
    return 1 if sweep.ending in ("stopped", "killed") else 0


def _show(sweep: AttachedSweep, *, once: bool) -> None:
    from rich.console import Console

    from dpbench.cli.attached_words import verdict
    from dpbench.cli.live_view import frame, whole_height
    from dpbench.cli.terminal import can_draw

    console = Console(highlight=False)
    if can_draw(console) and sweep.running is not None and not once:
        _watch(console, sweep)
    text = frame(sweep.standing, sweep.moment, table_width(), whole_height(sweep.standing))
    console.print(text, soft_wrap=True)
    for line in verdict(sweep):
        console.print(line, markup=False, soft_wrap=True)


def _watch(console: Console, sweep: AttachedSweep) -> None:
    """Redraws until the sweep or the user has ended it."""
    import os
    from time import sleep

    from rich.live import Live

    from dpbench.cli.interrupts import as_exceptions
    from dpbench.cli.live_view import frame

    os.nice(19)  # what is being measured comes first
    with as_exceptions(), Live(console=console, auto_refresh=False, transient=True) as view:
        try:
            while sweep.running is not None:
                width, height = console.size
                view.update(frame(sweep.standing, sweep.moment, width, height - 1), refresh=True)
                sleep(1 / LOOKS_PER_SECOND)
                sweep.look()
        except KeyboardInterrupt:
            return


def _print_json(sweep: AttachedSweep) -> None:
    import json

    from dpbench.cli.attached_words import as_data

    typer.echo(json.dumps(as_data(sweep), indent=1, ensure_ascii=False))

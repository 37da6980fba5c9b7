"""`dpbench top`: look at a sweep that runs in another terminal."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpbench import units
from dpbench.cli.options import LATEST_RESULTS
from dpbench.report.progress.terminal import table_width

if TYPE_CHECKING:
    from rich.console import Console

    from dpbench.run.watching import WatchedSweep

LOOKS_PER_SECOND = 2


def top(
    folder: Annotated[
        Path | None,
        typer.Argument(
            metavar="DIR", show_default=LATEST_RESULTS, help="Results folder of a sweep."
        ),
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Print the current status and exit.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the current status as JSON and exit.")
    ] = False,
) -> int:
    """Watch a running sweep from another terminal.

    Without a terminal to draw on it prints once how the sweep stands.

    Exit status: 0 it runs, or all its trials are stored, as precisely as was asked
    for; 1 it ended before that; 2 usage, or DIR is not the folder of a sweep.
    """
    from dpbench.run.results import latest_folder
    from dpbench.run.watching import WatchedSweep

    sweep = WatchedSweep(latest_folder("top") if folder is None else folder)
    sweep.look()
    if as_json:
        typer.echo(json.dumps(_as_json(sweep), indent=1, ensure_ascii=False))
    else:
        _show(sweep, once=once)
    return 1 if sweep.ending in ("stopped", "killed") else 0


def _show(sweep: WatchedSweep, *, once: bool) -> None:
    from rich.console import Console

    from dpbench.report.progress.terminal import can_draw
    from dpbench.report.progress.trials import frame, whole_height

    console = Console(highlight=False)
    if can_draw(console) and sweep.running is not None and not once:
        _watch(console, sweep)
    text = frame(sweep.state, sweep.moment, table_width(), whole_height(sweep.state))
    console.print(text, soft_wrap=True)
    for line in _summary(sweep):
        console.print(line, markup=False, soft_wrap=True)


def _watch(console: Console, sweep: WatchedSweep) -> None:
    """Redraws until the sweep or the user has ended it."""
    from rich.live import Live

    from dpbench.report.progress.trials import frame
    from dpbench.run.interrupts import as_exceptions

    os.nice(19)  # what is being measured comes first
    with as_exceptions(), Live(console=console, auto_refresh=False, transient=True) as view:
        try:
            while sweep.running is not None:
                width, height = console.size
                view.update(frame(sweep.state, sweep.moment, width, height - 1), refresh=True)
                time.sleep(1 / LOOKS_PER_SECOND)
                sweep.look()
        except KeyboardInterrupt:
            return


def _summary(sweep: WatchedSweep) -> Iterator[str]:
    """Says whether it runs, and what to do next."""
    folder = sweep.folder
    where = f"{_stored(sweep)} in {folder}"
    if sweep.ending is None:
        yield f"running: {where}"
        if sweep.running is not None and sweep.moment is None:
            yield _why_unseen(sweep.running.host)
    elif sweep.ending == "finished":
        yield f"finished: {where}; dpbench report {folder}"
    else:
        how = "was killed" if sweep.ending == "killed" else "does not run"
        yield f"{how}: {where}{_too_wide(sweep)}{_remedy(sweep)}"


def _stored(sweep: WatchedSweep) -> str:
    """Counts the stored trials, and all where their number is known before the sweep ends."""
    done, planned = sweep.state.done, sweep.state.planned_in_all
    return units.stored(done, None if sweep.spec.precision is not None else planned)


def _too_wide(sweep: WatchedSweep) -> str:
    if not sweep.too_wide:
        return ""
    verb = "is" if sweep.too_wide == 1 else "are"
    asked = f"± {100 * (sweep.spec.precision or 0):g} %"
    return f", {units.counted(sweep.too_wide, 'configuration')} {verb} not known to {asked} yet"


def _why_unseen(host: str) -> str:
    if host != platform.node():
        return f"it runs on {host}: neither its steps nor whether it was killed is seen from here"
    return "its memory cannot be read: neither its steps nor whether it was killed is seen"


def _remedy(sweep: WatchedSweep) -> str:
    from dpbench.run.sweep.preparation import resume_command

    if sweep.command[:1] != ("sweep",):
        return ""
    return f"; to finish: {resume_command(sweep.command, sweep.folder)}"


def _as_json(sweep: WatchedSweep) -> dict[str, Any]:
    """All that the view shows, for other programs."""
    state = sweep.state
    return {
        "folder": str(sweep.folder),
        "state": sweep.ending or "running",
        "done": state.done,
        "planned": state.planned_in_all,
        "seconds_left": state.seconds_left(),
        "current": _current(sweep),
        "configurations": [
            {
                "configuration": row.label,
                "state": row.state,
                "done": row.done,
                "repetitions": row.planned,
                "items_per_second": row.speed,
                "item": row.item or None,
                "reason": row.remark or None,
            }
            for row in state.rows
        ],
    }


def _current(sweep: WatchedSweep) -> dict[str, Any] | None:
    """The trial that runs, with its stage and steps where they are visible."""
    current, moment = sweep.state.current, sweep.moment
    if current is None:
        return None
    return {
        "configuration": current.spec.label,
        "repetition": current.spec.repetition + 1,
        "seconds": sweep.state.elapsed_seconds(),
        "stage": moment.stage.words if moment and moment.steps_visible else None,
        "steps_done": moment.steps_done if moment else None,
        "steps": moment.steps if moment else None,
    }

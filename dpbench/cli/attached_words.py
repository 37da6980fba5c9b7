"""How a sweep that another process runs stands, in words and as data."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from typing import Any

from dpbench import units
from dpbench.cli.attached import AttachedSweep
from dpbench.cli.sweep_preparation import resume_command

RUNNING = "running"


def verdict(sweep: AttachedSweep) -> Iterator[str]:
    """Whether it runs, and where one goes from here."""
    folder = sweep.folder
    where = f"{_stored(sweep)} in {folder}"
    if sweep.ending is None:
        yield f"running: {where}"
        if sweep.running is not None and sweep.moment is None:
            yield _unseen(sweep)
    elif sweep.ending == "finished":
        yield f"finished: {where}; dpbench report {folder}"
    else:
        how = "was killed" if sweep.ending == "killed" else "does not run"
        yield f"{how}: {where}{_too_wide(sweep)}{_remedy(sweep)}"


def _stored(sweep: AttachedSweep) -> str:
    """Of how many, where that is known before the sweep ends."""
    done, planned = sweep.standing.done, sweep.standing.planned_in_all
    if sweep.spec.precision is not None:
        return f"{units.counted(done, 'trial')} {'is' if done == 1 else 'are'} stored"
    return f"{done:,} of {units.counted(planned, 'trial')} are stored"


def _too_wide(sweep: AttachedSweep) -> str:
    if not sweep.too_wide:
        return ""
    verb = "is" if sweep.too_wide == 1 else "are"
    asked = f"± {100 * (sweep.spec.precision or 0):g} %"
    return f", {units.counted(sweep.too_wide, 'configuration')} {verb} not known to {asked} yet"


def _unseen(sweep: AttachedSweep) -> str:
    assert sweep.running is not None
    host = sweep.running.host
    if host != platform.node():
        return f"it runs on {host}: neither its steps nor whether it was killed is seen from here"
    return "its memory cannot be read: neither its steps nor whether it was killed is seen"


def _remedy(sweep: AttachedSweep) -> str:
    if sweep.command[:1] != ("sweep",):
        return ""
    return f"; to finish: {resume_command(sweep.command, sweep.folder)}"


def as_data(sweep: AttachedSweep) -> dict[str, Any]:
    """All that the view shows, for other programs."""
    standing, moment = sweep.standing, sweep.moment
    current = standing.current
    return {
        "folder": str(sweep.folder),
        "state": sweep.ending or RUNNING,
        "done": standing.done,
        "planned": standing.planned_in_all,
        "seconds_left": standing.seconds_left(),
        "current": None
        if current is None
        else {
            "configuration": current.spec.label,
            "repetition": current.spec.repetition + 1,
            "seconds": standing.elapsed_seconds(),
            "stage": moment.stage.words if moment and moment.steps_visible else None,
            "steps_done": moment.steps_done if moment else None,
            "steps": moment.steps if moment else None,
        },
        "configurations": [
            {
                "configuration": row.label,
                "state": row.state,
                "done": row.done,
                "repetitions": row.asked,
                "items_per_second": row.speed,
                "item": row.item or None,
                "reason": row.said or None,
            }
            for row in standing.rows
        ],
    }

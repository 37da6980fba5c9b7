"""Whether a sweep is still running, as seen from another process."""

from __future__ import annotations

import platform
from pathlib import Path

from dpbench import live
from dpbench.live import ForeignPage, Moment, NoPage, RunningSweep
from dpbench.store import load_running


def is_running(folder: Path) -> bool:
    """What live.json says, unless the memory that it points to is gone: then it was killed.

    Of a sweep on another host, or of somebody else, nothing contradicts it. Raises StoreError if
    live.json cannot be read.
    """
    running = load_running(folder)
    if running is None:
        return False
    try:
        moment_of(running)
    except NoPage:
        return False
    return True


def moment_of(running: RunningSweep) -> Moment | None:
    """What its page says now; None if that cannot be seen from here. Raises NoPage if it was
    killed."""
    if running.address is None or running.host != platform.node():
        return None
    try:
        return live.read(running.address)
    except ForeignPage:
        return None

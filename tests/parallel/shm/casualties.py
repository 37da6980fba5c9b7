"""Ranks of which some are killed or stopped, and what the others have to say about it."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.parallel.ranks import Ranks


def run_with_casualties(
    function: Callable[[int], Any],
    store: Path,
    world_size: int,
    *,
    lost: int = 1,
    group_timeout: float = 20.0,
    backend: str = "shm",
) -> dict[int, Any]:
    """Call an importable function of the rank on every rank of a group; what the others return, by
    rank, when nothing is expected from the rank `lost`."""
    with closing(Ranks(store, world_size, backend, group_timeout, leave=0.0)) as ranks:
        results, failures = ranks.call(function, 40.0, lost=lost)
    assert not failures, "\n".join(failures)
    return dict(zip((r for r in range(world_size) if r != lost), results, strict=True))


def error_of(call: Callable[[], Any]) -> str:
    """The message of the error that a call must end in."""
    try:
        call()
    except RuntimeError as error:
        return str(error)
    raise AssertionError("no error")


def signal_soon(number: signal.Signals) -> None:
    """Send this process a signal while it does something else."""

    def strike() -> None:
        time.sleep(0.1)
        os.kill(os.getpid(), number)

    threading.Thread(target=strike, daemon=True).start()

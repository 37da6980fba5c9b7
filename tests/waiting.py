"""Other processes: which there are, and waiting for what they do, with an end on a busy machine."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil


def wait_until(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    """A zombie that nobody in a container collects has ended as well."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def commands_in(folder: Path) -> list[str]:
    """The command lines of the processes that work in the folder."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.cwd() == str(folder):
                found.append(" ".join(process.cmdline()))
    return found


def prefetch_threads() -> list[threading.Thread]:
    """Threads that load samples ahead."""
    return [one for one in threading.enumerate() if one.name.startswith("dpbench-prefetch")]

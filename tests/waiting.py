"""Waiting for what other processes do, with an end on a busy machine too."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path


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


def prefetch_threads() -> list[threading.Thread]:
    """Threads that load samples ahead."""
    return [one for one in threading.enumerate() if one.name.startswith("dpbench-prefetch")]

"""The transports that NCCL chose, from its log."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dpbench.records.trial import INFINIBAND_UNUSED
from dpbench.temporary import temporary_folder, temporary_variables

VIA = re.compile(r"Channel .+ via (NET/[A-Za-z]+|[A-Z0-9]+)")
INFINIBAND = Path("/sys/class/infiniband")


@contextmanager
def nccl_transports(backend: str) -> Iterator[Callable[[], tuple[str, ...]]]:
    """A context in which a process group is made; call the result after a first collective.

    NCCL reads these variables when it is first used, and only logs while it connects. If the user
    has asked for a log, it stays theirs, and the result is ().
    """
    if not backend.startswith("nccl") or "NCCL_DEBUG" in os.environ:
        yield tuple
        return
    with temporary_folder() as folder:
        log = folder / "nccl.log"
        asked = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT", "NCCL_DEBUG_FILE": str(log)}
        with temporary_variables(asked):
            yield lambda: transports_in(log.read_text() if log.exists() else "")


def transports_in(log: str) -> tuple[str, ...]:
    """The transports in the text of a log."""
    found = sorted(set(VIA.findall(log)))
    beside = INFINIBAND.is_dir() and any(INFINIBAND.iterdir())
    return tuple(INFINIBAND_UNUSED if name == "NET/Socket" and beside else name for name in found)

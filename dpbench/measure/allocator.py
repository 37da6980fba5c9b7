"""Handling of the host memory that a process frees: the C library decides, or it is kept.

glibc gives the top of its heap back to the kernel whenever more than a threshold is free there,
and requests it again, page fault by page fault, a moment later. Whether a training step pays for
that depends on what was freed before and on where the heap happens to begin: on mnist_cnn at batch
32 the same loop took 0 to 3,400 faults a step in different processes, and up to a fifth longer. A
process that keeps its memory pays nothing, at the price of a larger resident set.

Trials use the system's default, as any script does, unless they are asked to keep memory; `dpbench
train` and `dpbench launch`, whose aim is speed, keep it unless they are told not to.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Mapping, MutableMapping

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # <malloc.h>
_SETTINGS = (
    (_M_TRIM_THRESHOLD, "MALLOC_TRIM_THRESHOLD_", 2**31 - 1),  # never
    # Where glibc's own adjustment of it ends.
    (_M_MMAP_THRESHOLD, "MALLOC_MMAP_THRESHOLD_", 32 * 1024 * 1024),
    # The arenas of further threads give memory back whatever is set.
    (_M_ARENA_MAX, "MALLOC_ARENA_MAX", 1),
)
"""Parameter of mallopt, environment variable, and the value of both that keeps memory."""

USERS_OWN = ("MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD")
MARK = "DPBENCH_KEEPS_FREED_MEMORY"
"""Environment variable that marks processes for which `dpbench launch` has set `kept_variables`."""

KEPT = "glibc, freed memory kept"
LEFT_ALONE = "as the system has it"


def keep_freed_memory() -> str:
    """Make glibc keep freed memory; returns what was done, for the record.

    Other C libraries, and processes whose user set up an allocator, are left alone.
    """
    if reason_to_leave() is not None:
        return LEFT_ALONE
    library = ctypes.CDLL(None)
    is_kept = all(library.mallopt(parameter, value) for parameter, _, value in _SETTINGS)
    return KEPT if is_kept else LEFT_ALONE


def reason_to_leave() -> str | None:
    """Why freed memory cannot be kept here, or is the user's to decide; None if it can be kept."""
    if sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "gnu_get_libc_version"):
        return "only glibc can be told to"
    own = next((name for name in sorted(os.environ) if name.startswith(USERS_OWN)), None)
    return own and f"{own} is set"


def kept_variables() -> dict[str, str]:
    """The environment of a process that is to keep freed memory from its start; also works for
    programs other than dpbench."""
    return {**{variable: str(value) for _, variable, value in _SETTINGS}, MARK: "1"}


def is_kept_by_launch(environ: Mapping[str, str]) -> bool:
    """Whether `dpbench launch` has decided for this process."""
    return MARK in environ


def forget_launch(environ: MutableMapping[str, str]) -> None:
    """Remove the variables that `dpbench launch` has set, so that processes started from here have
    the system's allocator."""
    if MARK in environ:
        for name in kept_variables():
            environ.pop(name, None)

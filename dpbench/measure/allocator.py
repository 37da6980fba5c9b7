"""The memory allocator of a rank, brought into one known state before anything is measured.

glibc gives the top of its heap back to the kernel whenever more than a threshold is free there,
and takes it again, page fault by page fault, a moment later. Whether a training step pays for
that depends on what was freed before and on where the heap happens to begin: on mnist_cnn at batch
32 the same loop took 0 to 3,400 faults a step in different processes, and up to a fifth longer.
No difference between implementations can be seen through that, so a rank keeps what it has.
"""

from __future__ import annotations

import ctypes
import os
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # <malloc.h>
_NEVER = 2**31 - 1
_LARGEST_MMAP_THRESHOLD = 32 * 1024 * 1024  # where glibc's own adjustment of it ends

USERS_OWN = ("MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD")

KEPT = "glibc, freed memory kept"
LEFT_ALONE = "as the system has it"


def keep_freed_memory() -> str:
    """Tells glibc to keep freed memory; returns what was done, for the record.

    Left alone are other C libraries, and users who set up an allocator themselves.
    """
    if sys.platform != "linux" or any(name.startswith(USERS_OWN) for name in os.environ):
        return LEFT_ALONE
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return LEFT_ALONE
    settings = (
        (_M_TRIM_THRESHOLD, _NEVER),
        (_M_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD),
        (_M_ARENA_MAX, 1),  # the arenas of further threads give memory back whatever is set
    )
    return KEPT if all(library.mallopt(*setting) for setting in settings) else LEFT_ALONE

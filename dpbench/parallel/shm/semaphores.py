"""POSIX semaphores in shared memory: the flags with which ranks wait for each other.

`sem_post` releases and `sem_wait` acquires (POSIX.1-2017, 4.12 Memory Synchronization), so what a
rank wrote before it posted is there for the one that took the token: on Arm as well as on x86.
"""

from __future__ import annotations

import ctypes
import time

# A cache line each, so that two flags never share one. glibc's sem_t has 32 bytes.
SIZE = 64

# Posting and trying take less time than giving up the interpreter lock: PyDLL keeps it.
_quick = ctypes.PyDLL(None)
# Blocking must give it up: CDLL does.
_blocking = ctypes.CDLL(None)

post = _quick.sem_post
"""post(flag.address): give one token."""

try_take = _quick.sem_trywait
"""try_take(flag.address): take a token; 0 if there was one, -1 if not."""


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class Flag:
    """A semaphore.

    Attributes:
        peer: the rank at the other end, whom one waits for when one waits for this flag.
        address: of the semaphore, as the functions of this module take it.
    """

    __slots__ = ("address", "peer")

    def __init__(self, address: int, peer: int) -> None:
        self.address = ctypes.c_void_p(address)
        self.peer = peer


def initialise(address: int, tokens: int) -> None:
    """Make a semaphore for several processes, before any of them uses it."""
    if _quick.sem_init(ctypes.c_void_p(address), 1, tokens):
        raise OSError("sem_init failed: this system has no semaphores between processes")


def has_token(flag: Flag) -> bool:
    """Whether a token is there; another thread may take it at any time."""
    value = ctypes.c_int()
    _quick.sem_getvalue(flag.address, ctypes.byref(value))
    return value.value > 0


def wait_for_token(flag: Flag, seconds: float) -> None:
    """Block until there is a token, at most for a time; the token stays."""
    deadline = time.clock_gettime(_CLOCK) + seconds
    until = _Timespec(int(deadline), int(deadline % 1 * 1e9))
    if _timed_wait(flag, ctypes.byref(until)) == 0:
        post(flag.address)


if hasattr(_blocking, "sem_clockwait"):  # glibc 2.30
    _CLOCK = time.CLOCK_MONOTONIC

    def _timed_wait(flag: Flag, until: object) -> int:
        return int(_blocking.sem_clockwait(flag.address, time.CLOCK_MONOTONIC, until))

else:
    _CLOCK = time.CLOCK_REALTIME

    def _timed_wait(flag: Flag, until: object) -> int:
        return int(_blocking.sem_timedwait(flag.address, until))

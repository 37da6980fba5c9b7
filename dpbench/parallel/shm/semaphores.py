"""POSIX semaphores in shared memory: the flags with which ranks wait for each other.

`sem_post` releases and `sem_wait` acquires (POSIX.1-2017, 4.12 Memory Synchronization), so what a
rank wrote before posting is visible to the rank that took the token, on Arm as well as on x86.
"""

from __future__ import annotations

import ctypes
import time

# One cache line each, so that flags never share one (false sharing). glibc's sem_t has 32 bytes.
SIZE = 64

# Posting and trying are faster than releasing the interpreter lock, so PyDLL keeps it.
_quick = ctypes.PyDLL(None)
# Blocking must release the interpreter lock, as CDLL does.
_blocking = ctypes.CDLL(None)

post = _quick.sem_post
"""`post(flag.address)` gives one token."""

try_take = _quick.sem_trywait
"""`try_take(flag.address)` takes a token; it returns 0 if there was one, -1 if not."""


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class SharedFlag:
    """A semaphore between two ranks.

    Attributes:
        peer: the rank at the other end, which posts the tokens.
        address: the semaphore's address, as the functions of this module take it.
    """

    __slots__ = ("address", "peer")

    def __init__(self, address: int, peer: int) -> None:
        self.address = ctypes.c_void_p(address)
        self.peer = peer


def initialise(address: int, tokens: int) -> None:
    """Initialise a semaphore for several processes, before any of them uses it."""
    if _quick.sem_init(ctypes.c_void_p(address), 1, tokens):
        raise OSError("sem_init failed: this system has no semaphores between processes")


def has_token(flag: SharedFlag) -> bool:
    """Whether a token is there; another thread may take it at any time."""
    value = ctypes.c_int()
    _quick.sem_getvalue(flag.address, ctypes.byref(value))
    return value.value > 0


def wait_for_token(flag: SharedFlag, seconds: float) -> None:
    """Block until there is a token, for a limited time; the token is not taken."""
    deadline = time.clock_gettime(_CLOCK) + seconds
    until = _Timespec(int(deadline), int(deadline % 1 * 1e9))
    if _timed_wait(flag, ctypes.byref(until)) == 0:
        post(flag.address)


if hasattr(_blocking, "sem_clockwait"):  # glibc 2.30
    _CLOCK = time.CLOCK_MONOTONIC

    def _timed_wait(flag: SharedFlag, until: object) -> int:
        return int(_blocking.sem_clockwait(flag.address, time.CLOCK_MONOTONIC, until))

else:
    _CLOCK = time.CLOCK_REALTIME

    def _timed_wait(flag: SharedFlag, until: object) -> int:
        return int(_blocking.sem_timedwait(flag.address, until))

"""POSIX semaphores in shared memory, with which ranks wait for each other.

`sem_post` releases and `sem_wait` acquires (POSIX.1-2017, 4.12 Memory Synchronization): what a rank
wrote before it posted is visible to the rank that took the token, on Arm as well as on x86. No
other fence is needed.

A semaphore is given by its address, as a `ctypes.c_void_p`.
"""

from __future__ import annotations

import ctypes
import time

SIZE = 64
"""Bytes per semaphore: a cache line, so that no two share one. glibc's sem_t has 32 bytes."""

# Posting and trying are faster than releasing the interpreter lock, so PyDLL keeps it.
_quick = ctypes.PyDLL(None)
# Blocking must release the interpreter lock, as CDLL does.
_blocking = ctypes.CDLL(None)

post = _quick.sem_post
"""`post(semaphore)` gives one token."""

try_take = _quick.sem_trywait
"""`try_take(semaphore)` takes a token; it returns 0 if there was one, -1 if not."""


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


def initialize(address: int) -> None:
    """Make a semaphore without tokens at this address, before any process uses it."""
    if _quick.sem_init(ctypes.c_void_p(address), 1, 0):
        raise OSError("sem_init failed: this system has no semaphores between processes")


def has_token(semaphore: ctypes.c_void_p) -> bool:
    """Whether a token is there, without taking it."""
    value = ctypes.c_int()
    _quick.sem_getvalue(semaphore, ctypes.byref(value))
    return value.value > 0


def take_within(semaphore: ctypes.c_void_p, seconds: float) -> bool:
    """Block until a token can be taken, for a limited time; returns whether it was taken.

    A change of the system's clock lengthens or shortens one wait; callers wait in short turns.
    """
    deadline = time.time() + seconds
    until = _Timespec(int(deadline), int(deadline % 1 * 1e9))
    return bool(_blocking.sem_timedwait(semaphore, ctypes.byref(until)) == 0)

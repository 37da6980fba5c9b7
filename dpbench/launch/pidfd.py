"""Handles of processes (pidfd), which no later process with the same number shares.

`os.pidfd_open` and `signal.pidfd_send_signal` are missing from a Python that was built for older
kernels, such as uv's, so these are the system calls themselves. Linux 5.3 has both.
"""

from __future__ import annotations

import ctypes
import os

from dpbench.errors import LaunchError

PIDFD_SEND_SIGNAL, PIDFD_OPEN = 424, 434  # on every architecture that torch has wheels for

_SYSCALL = ctypes.CDLL(None, use_errno=True).syscall
_SYSCALL.restype = ctypes.c_long


def open_process(pid: int) -> int:
    """A handle of a process, which can be polled for its end and has to be closed.

    Raises ProcessLookupError if it has ended, LaunchError if there are no such handles here.
    """
    try:
        return _call(PIDFD_OPEN, pid, 0)
    except ProcessLookupError:
        raise
    except OSError as error:
        raise LaunchError(
            f"pidfd_open: {error.strerror}; expected Linux 5.3 or later, and a container that "
            "permits this system call"
        ) from None


def send_signal(handle: int, number: int) -> None:
    """Send a signal to a process; raises ProcessLookupError if it has ended."""
    _call(PIDFD_SEND_SIGNAL, handle, number, 0, 0)


def _call(number: int, *arguments: int) -> int:
    result: int = _SYSCALL(*map(ctypes.c_long, (number, *arguments)))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))  # a subclass, depending on the code
    return result

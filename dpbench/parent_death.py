"""Ties the life of a process to that of its parent, by the kernel's parent-death signal.

As a program it asks for the signal, then becomes the command that it is given. It then runs in an
isolated Python, so it imports only the standard library, in ten milliseconds.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

PR_SET_PDEATHSIG = 1  # of linux/prctl.h; it outlives exec
PR_SET_CHILD_SUBREAPER = 36


def prctl(option: int, value: int) -> None:
    """Set what the kernel keeps of this process, on Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value)


def end_with(parent_pid: int, number: int = signal.SIGKILL) -> None:
    """Have the kernel send this process the signal `number` when its parent ends, even by kill -9;
    exit if the parent has ended already.

    The parent must have started it from a thread that lives as long as the parent.
    """
    prctl(PR_SET_PDEATHSIG, number)
    if os.getppid() != parent_pid:
        sys.exit(128 + number)


def tied_to_this_process(command: Sequence[str], number: int = signal.SIGKILL) -> list[str]:
    """The command, made to get the signal `number` when this process ends."""
    program = [sys.executable, "-I", "-S", __file__]
    return [*program, str(os.getpid()), str(int(number)), *command]


if __name__ == "__main__":
    parent_pid, number, *command = sys.argv[1:]
    end_with(int(parent_pid), int(number))
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"{command[0]}: {error.strerror}")

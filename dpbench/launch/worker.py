"""The first code of a process whose life is tied to that of the process that starts it: it asks the
kernel for a signal when that one ends, then becomes the command.

It runs as a file, in an isolated Python: it imports only the standard library, in ten milliseconds,
and leaves nothing in the command except the parent-death signal.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

PR_SET_PDEATHSIG = 1  # of linux/prctl.h; it outlives exec


def tied_to_this_process(command: Sequence[str], number: int = signal.SIGKILL) -> list[str]:
    """The command, made to get the signal `number` when this process ends, even by kill -9.

    It must be started from a thread that lives as long as this process.
    """
    own = [sys.executable, "-I", "-S", __file__]
    return [*own, str(os.getpid()), str(int(number)), *command]


def main(parent_pid: int, number: int, command: list[str]) -> NoReturn:
    """Start the command in this process."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, number)
    if os.getppid() != parent_pid:  # it ended before prctl
        sys.exit(128 + number)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"{command[0]}: {error.strerror}")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])

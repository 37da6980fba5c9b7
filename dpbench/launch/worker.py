"""The first code of each `dpbench launch` process: it ties its life to the launcher's, then becomes
the worker.

It runs as a file, in an isolated Python: it imports only the standard library, in ten milliseconds,
and leaves nothing in the worker except the parent-death signal.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import NoReturn

PR_SET_PDEATHSIG = 1  # of linux/prctl.h; it outlives exec


def main(launcher_pid: int, command: list[str]) -> NoReturn:
    """Start the command in this process."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != launcher_pid:  # the launcher ended before prctl
        sys.exit(128 + signal.SIGKILL)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])

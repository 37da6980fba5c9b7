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

PR_SET_PDEATHSIG = 1  # of linux/prctl.h; it outlives exec
NOT_FOUND = 127  # as shells have it


def main(launcher_pid: int, command: list[str]) -> int:
    """Start the command in this process; does not return if that succeeds."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != launcher_pid:  # the launcher ended before prctl
        return 128 + signal.SIGKILL
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"dpbench: cannot start {command[0]}: {error.strerror}", file=sys.stderr)
        return NOT_FOUND


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))

"""What each process of `dpbench launch` runs first: it ties its life to the launcher's, then
becomes the worker.

Runs as a file, in an isolated Python: it imports the standard library only, in ten milliseconds,
and leaves no trace in the worker but the signal.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # of linux/prctl.h; it outlives exec
NOT_FOUND = 127  # as shells have it


def main(launcher_pid: int, command: list[str]) -> int:
    """Never returns if the command can be started."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != launcher_pid:  # it was gone before the kernel knew
        return 128 + signal.SIGKILL
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"dpbench: cannot start {command[0]}: {error.strerror}", file=sys.stderr)
        return NOT_FOUND


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))

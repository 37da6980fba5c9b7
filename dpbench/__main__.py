"""The command `dpbench`, also as `python -m dpbench`.

Imports nothing heavy: the processes of every trial import this file again as their main module.
"""

from __future__ import annotations

import os
import sys


def main() -> int:
    _open_missing_streams()
    from dpbench.cli.interrupts import end_at_once
    from dpbench.cli.streams import forgive_readers_that_leave

    end_at_once()
    forgive_readers_that_leave()
    from dpbench.cli.app import run

    return run(sys.argv[1:])


def _open_missing_streams() -> None:
    """Where the caller closed stdin, stdout or stderr, the next file opened would become it."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, os.fdopen(number, "w" if number else "r"))


if __name__ == "__main__":
    sys.exit(main())

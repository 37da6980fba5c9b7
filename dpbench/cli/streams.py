"""Standard streams that are closed, full, or have lost their reader cost no command its work.

`dpbench report … | head -1` still writes its report, and a sweep whose terminal is gone still
measures every trial. Output lost to an error, as on a full disk, makes the command fail at its end.
Output is UTF-8 whatever the locale, and with --json nothing but the result reaches stdout: what a
model prints when it is imported, from a child process or in an exit handler goes to stderr.
"""

from __future__ import annotations

import io
import os
import select
import sys
from collections.abc import Sequence
from typing import Any

from dpbench.messages import keep_for_results, say

FOR_PROGRAMS = {"--json", "--json-lines"}
"""Options whose output a program reads."""


class Enduring(io.FileIO):
    """Drops what cannot be written and remembers why; the command goes on."""

    error: OSError | None = None
    """The first error, unless a reader has left: that is the reader's decision."""

    def write(self, data: Any) -> int:
        try:
            while (count := super().write(data)) is None:  # non-blocking, and full at the moment
                select.select([], [self.fileno()], [])
            return count
        except BrokenPipeError:
            pass
        except OSError as error:
            self.error = self.error or error
        return memoryview(data).nbytes

    def exit_status(self, status: int) -> int:
        """The exit status of a command that ended with `status`: not 0 if its output was lost."""
        sys.stdout.flush()  # results are flushed as they are printed
        if self.error is None:
            return status
        say(f"cannot write the output: {self.error.strerror}")
        return status or 1


def prepare_streams(arguments: Sequence[str] = ()) -> Enduring:
    """Makes the standard streams of this process safe and returns the file behind its results.

    If the command's `arguments` ask for JSON, descriptor 1 becomes a copy of stderr, also for child
    processes, and results have a descriptor of their own. Call it before anything is opened: the
    next file would get the number of a closed stream, and with it what this process and its
    children print.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number is free
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 - lives as long as the process
    results, raw = _enduring(sys.stdout, 1)
    sys.stdout = results
    if FOR_PROGRAMS & {*arguments} and arguments[0] != "launch":  # launch runs another program
        results, raw = _enduring(sys.stdout, os.dup(1))
        keep_for_results(results)
        os.dup2(2, 1)
    sys.stderr, _ = _enduring(sys.stderr, 2)
    return raw


def _enduring(old: Any, number: int) -> tuple[io.TextIOWrapper, Enduring]:
    """A stream like the old one, None if that was closed, on a file that endures errors."""
    if old is not None:
        old.flush()
    raw = Enduring(number, "w", closefd=False)
    stream = io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding="utf-8",
        errors="backslashreplace",
        line_buffering=number == 2 or (old is not None and old.isatty()),
    )
    return stream, raw

"""Standard streams that are closed, full, or have lost their reader cost no command its work.

`dpbench report … | head -1` still writes its report, and a sweep whose terminal is gone still
measures every trial. Output that could not be written is dropped here and reported at the end.
"""

from __future__ import annotations

import codecs
import io
import os
import select
import sys
from typing import Any

from dpbench.messages import say

NAMES = ("stdin", "stdout", "stderr")
ESCAPES = "dpbench-escapes"
"""The name of `_escaped` for Python's codecs."""
PYTHONS_CHOICES = ("strict", "surrogateescape")
"""How a stream treats characters that it cannot encode, unless PYTHONIOENCODING says how."""


class _Enduring(io.FileIO):
    """Drops what cannot be written and remembers why; the command goes on."""

    def __init__(self, number: int) -> None:
        super().__init__(number, "w", closefd=False)
        self.used = False
        self.error: OSError | None = None
        """The first error, unless a reader has left: that is the reader's decision."""

    def write(self, data: Any) -> int:
        self.used = True
        try:
            while (count := super().write(data)) is None:  # non-blocking, and full at the moment
                select.select([], [self.fileno()], [])
            return count
        except BrokenPipeError:
            pass
        except OSError as error:
            self.error = self.error or error
        return memoryview(data).nbytes


def prepare_streams() -> Streams:
    """Make the standard streams of this process safe; call it before anything is opened."""
    codecs.register_error(ESCAPES, _escaped)
    missing = _fill_missing_descriptors()
    if "stdin" in missing:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 - lives as long as the process
    stdout, _ = _replace(1), _replace(2)
    return Streams(stdout, stdout_was_closed="stdout" in missing)


class Streams:
    """State of this process's output streams."""

    def __init__(self, stdout: _Enduring, *, stdout_was_closed: bool) -> None:
        self._stdout = stdout
        self._was_closed = stdout_was_closed

    def exit_status(self, status: int) -> int:
        """The exit status of a command that ended with `status`, after a line on lost output.

        Output lost to an error, as on a full disk, is a failure; a closed stdout was a choice.
        """
        sys.stdout.flush()
        if error := self._stdout.error:
            say(f"cannot write the output: {error.strerror}")
            return status or 1
        if self._was_closed and self._stdout.used:
            say("stdout is closed, so the output was not shown")
        return status


def _replace(number: int) -> _Enduring:
    """Put the stream of that number on a file that endures errors, and return the file."""
    name = NAMES[number]
    old = getattr(sys, name)  # None where it was closed
    if old is not None:
        old.flush()
    errors = getattr(old, "errors", "strict")
    if errors in PYTHONS_CHOICES:
        errors = ESCAPES
    raw = _Enduring(number)
    new = io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=getattr(old, "encoding", "utf-8"),
        errors=errors,
        line_buffering=number == 2 or (old is not None and old.isatty()),
    )
    setattr(sys, name, new)
    return raw


def _fill_missing_descriptors() -> list[str]:
    """Open closed standard streams on /dev/null, and return their names.

    The next file to be opened would get their number otherwise, and what is printed. Child
    processes inherit them.
    """
    missing = []
    for number, name in enumerate(NAMES):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number is free
            missing.append(name)
    return missing


def _escaped(error: UnicodeError) -> tuple[str, int]:
    """Characters that the stream's encoding lacks, as JSON and Python write them: \\u00d7.

    Terminals and pipes that are not UTF-8 get all of the text that way, and JSON stays JSON.
    """
    if not isinstance(error, UnicodeEncodeError):
        raise error
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass")
    pairs = (int.from_bytes(units[at : at + 2], "big") for at in range(0, len(units), 2))
    return "".join(f"\\u{unit:04x}" for unit in pairs), error.end

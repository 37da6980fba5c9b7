"""Runs `dpbench` in this process on hostile input, and says what every command owes its user."""

from __future__ import annotations

import contextlib
import io
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dpbench.cli.app import run

STATUSES = {
    "sweep": {0, 1, 2, 6},
    "train": {0, 1, 2},
    "report": {0, 2},
    "explain": {0, 2},
    "plot": {0, 2},
    "export": {0, 2},
    "compare": {0, 2, 5},
    "check": {0, 1, 2, 3, 4, 5, 6},
    "comm": {0, 1, 2},
    "project": {0, 2},
    "iso": {0, 2},
    "what-if": {0, 2},
    "launch": {0, 1, 2},
    "init": {0, 2},
    "list": {0, 2},
    "fit": {0, 2},
    "doctor": {0, 2},
}
"""The exit statuses that the commands document."""
REFUSED = (2, 5)
SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True, slots=True)
class Ended:
    """What a user gets to see of a command."""

    status: int
    out: str
    err: str


def dpbench(arguments: Sequence[str], folder: Path) -> Ended:
    """Runs the command in `folder`; an exception that it lets escape fails the test.

    stdout encodes strictly and stderr does not, as in a process of its own.
    """
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="\n")
    err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace", newline="\n")
    with (
        contextlib.chdir(folder),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        _signals_kept(),
    ):
        status = run(arguments)
    return Ended(status, *(_text(stream) for stream in (out, err)))


def assert_ends_well(arguments: Sequence[str], folder: Path) -> Ended:
    """A documented status, no traceback, and one line of dpbench's own for what is refused."""
    ended = dpbench(arguments, folder)
    command = arguments[0] if arguments and arguments[0] in STATUSES else "doctor"
    assert ended.status in STATUSES[command], ended
    assert "Traceback" not in ended.err
    if ended.status in REFUSED:
        lines = ended.err.split("\n")
        assert lines[-1] == ""
        assert lines[-2].startswith("dpbench: "), ended.err
    return ended


def _text(stream: io.TextIOWrapper) -> str:
    stream.seek(0)
    return stream.read()


@contextlib.contextmanager
def _signals_kept() -> Iterator[None]:
    """Measuring changes what a signal does."""
    before = [signal.getsignal(number) for number in SIGNALS]
    try:
        yield
    finally:
        for number, handler in zip(SIGNALS, before, strict=True):
            signal.signal(number, handler)

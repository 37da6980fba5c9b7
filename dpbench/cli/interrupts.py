"""Ctrl-C while nothing is measured: end at once.

Python raises KeyboardInterrupt wherever it is, and some libraries swallow it while they are being
imported, to fail strangely later. Before the first trial and after the last there is nothing to
keep that is not stored, so the process just ends.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from dpbench.errors import Interrupted

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def end_at_once(leftovers: Path | None = None) -> None:
    """From now on a signal removes the folder `leftovers` and ends the process with 128 + n."""

    def end(number: int, _: FrameType | None) -> None:
        if leftovers is not None:
            shutil.rmtree(leftovers, ignore_errors=True)
        os.write(2, b"dpbench: interrupted\n")
        os._exit(128 + number)

    for number in SIGNALS:
        signal.signal(number, end)


def _interrupt(number: int, _: FrameType | None) -> None:
    raise Interrupted(number)


@contextmanager
def as_exceptions() -> Iterator[None]:
    """Inside, Ctrl-C is a KeyboardInterrupt again, and SIGTERM an Interrupted: whatever was begun,
    a view on the terminal too, is ended properly."""
    before = [signal.getsignal(number) for number in SIGNALS]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        for number, handler in zip(SIGNALS, before, strict=True):
            signal.signal(number, handler)

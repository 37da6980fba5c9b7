"""Ctrl-C while nothing is measured: end at once.

Python raises KeyboardInterrupt wherever it is, and some libraries swallow it while they are being
imported, to fail strangely later. Before the first trial and after the last there is nothing to
keep that is not stored, so the process just ends.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from dpbench.errors import Interrupted
from dpbench.launch.signals import ENDING, handle_unless_ignored
from dpbench.temporary import clean_up


def end_at_once() -> None:
    """Let every signal that is not ignored end the process with status 128 + n from now on."""

    def end(number: int, _: FrameType | None) -> None:
        clean_up()
        os.write(2, b"dpbench: interrupted\n")
        os._exit(128 + number)

    for number in ENDING:
        handle_unless_ignored(number, end)


@contextmanager
def as_exceptions() -> Iterator[None]:
    """Inside, Ctrl-C is a KeyboardInterrupt again, and the other signals of ENDING are Interrupted.

    So a view on the terminal, for example, is closed properly. Ignored signals stay ignored.
    """

    def interrupt(number: int, _: FrameType | None) -> None:
        raise Interrupted(number)

    before = [signal.getsignal(number) for number in ENDING]
    handle_unless_ignored(signal.SIGINT, signal.default_int_handler)
    for number in ENDING[1:]:
        handle_unless_ignored(number, interrupt)
    try:
        yield
    finally:
        for number, handler in zip(ENDING, before, strict=True):
            signal.signal(number, handler)

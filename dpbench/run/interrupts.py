"""Ctrl-C and other signals that end a command.

Python raises KeyboardInterrupt wherever it is, and some libraries swallow it while they are being
imported, to fail strangely later. Before the first trial and after the last there is nothing to
keep that is not stored, so the process just ends. A program that calls dpbench keeps its own
handlers: only those that `end_at_once` has set are ever replaced.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from dpbench.errors import Interrupted
from dpbench.launch.signals import ENDING, end_process, handle_endings


def end_at_once() -> None:
    """Let every signal that is not ignored end the process with status 128 + n from now on."""
    handle_endings(end_process)


@contextmanager
def as_exceptions() -> Iterator[None]:
    """Inside, Ctrl-C is a KeyboardInterrupt again, and the other signals of ENDING are Interrupted.

    So a view on the terminal, for example, is closed properly.
    """
    ours = [number for number in ENDING if signal.getsignal(number) is end_process]
    for number in ours:
        interrupt = signal.default_int_handler if number == signal.SIGINT else _interrupt
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, end_process)


@contextmanager
def interruptible(stored_words: Callable[[], str]) -> Iterator[None]:
    """The same, and a signal that ends the block is Interrupted, which says what is stored."""
    try:
        with as_exceptions():
            yield
    except (KeyboardInterrupt, Interrupted) as error:
        number = getattr(error, "signal_number", signal.SIGINT)
        raise Interrupted(number, f"interrupted: {stored_words()}") from None


def _interrupt(number: int, _: FrameType | None) -> None:
    raise Interrupted(number)

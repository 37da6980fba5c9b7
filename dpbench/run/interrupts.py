"""Ctrl-C and other signals that end a command.

Python raises KeyboardInterrupt wherever it is, and some libraries swallow it while they are being
imported, to fail strangely later. Before the first trial and after the last there is nothing to
keep that is not stored, so the process just ends. A program that calls dpbench keeps its own
handlers: only those that `end_at_once` has set are ever replaced.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType

from dpbench.errors import Interrupted
from dpbench.launch.signals import ENDING, handle_unless_ignored
from dpbench.temporary import clean_up


def end_at_once() -> None:
    """Let every signal that is not ignored end the process with status 128 + n from now on."""
    for number in ENDING:
        handle_unless_ignored(number, partial(_end, "interrupted"))


def say_nothing_is_measured() -> None:
    """Let a signal say so from the start of a command that measures until its first trial."""
    say_at_end("interrupted before the first trial; nothing was measured")


def say_at_end(message: str) -> None:
    """Let a signal that ends the process print this, such as where complete results are."""
    for number in _ours():
        signal.signal(number, partial(_end, message))


@contextmanager
def as_exceptions() -> Iterator[None]:
    """Inside, Ctrl-C is a KeyboardInterrupt again, and the other signals of ENDING are Interrupted.

    So a view on the terminal, for example, is closed properly.
    """
    ours = _ours()
    for number in ours:
        interrupt = signal.default_int_handler if number == signal.SIGINT else _interrupt
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in ours.items():
            signal.signal(number, handler)


@contextmanager
def interruptible(stored_words: Callable[[], str]) -> Iterator[None]:
    """The same, and a signal that ends the block is Interrupted, which says what is stored."""
    try:
        with as_exceptions():
            yield
    except (KeyboardInterrupt, Interrupted) as error:
        number = getattr(error, "signal_number", signal.SIGINT)
        raise Interrupted(number, f"interrupted: {stored_words()}") from None
    say_at_end("interrupted")


def _ours() -> dict[signal.Signals, partial[None]]:
    """The handlers that `end_at_once` has set."""
    handlers = {number: signal.getsignal(number) for number in ENDING}
    return {
        number: handler
        for number, handler in handlers.items()
        if isinstance(handler, partial) and handler.func is _end
    }


def _end(message: str, number: int, _: FrameType | None) -> None:
    clean_up()
    os.write(2, f"dpbench: {message}\n".encode())
    os._exit(128 + number)


def _interrupt(number: int, _: FrameType | None) -> None:
    raise Interrupted(number)

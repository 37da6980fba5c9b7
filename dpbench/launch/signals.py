"""Signals that end a launch, except those that were ignored when it was started.

`nohup` ignores SIGHUP, and a shell ignores SIGINT for its background jobs. An ignored signal stays
ignored here and in the ranks, which inherit that.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from dpbench.temporary import clean_up

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
Handler = Callable[[int, FrameType | None], object] | signal.Handlers


def end_in_words(exit_code: int) -> str:
    """Say how a process ended: with a status, or by a signal where the exit code is negative."""
    if exit_code >= 0:
        return f"exited with status {exit_code}"
    known = -exit_code in list(signal.Signals)  # real-time signals have no names
    name = signal.Signals(-exit_code).name if known else f"signal {-exit_code}"
    hint = " (kill -9, or the kernel for lack of memory)" if name == "SIGKILL" else ""
    return f"was killed by {name}{hint}"


def handle_endings(handler: Handler) -> None:
    """Set the handler of the signals of ENDING that are not ignored."""
    for number in ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)


def end_process(number: int, _: FrameType | None = None) -> None:
    """End this process at once, with the exit status of the signal."""
    clean_up()
    os.write(2, b"dpbench: interrupted\n")
    os._exit(128 + number)


@contextmanager
def ended_by_second_signal() -> Iterator[None]:
    """A context in which a signal of ENDING ends this process when it comes for the second time.

    A separate thread does it, since the main thread waits for the work that the first signal ends.
    Signals without a Python handler are left alone. Enter it in the main thread.
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)

    def listen() -> None:
        heard: set[int] = set()
        while number := int.from_bytes(os.read(reading, 1)):
            if number in heard and number in ENDING:
                end_process(number)
            heard.add(number)
        os.close(reading)

    threading.Thread(target=listen, name="second-signal", daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(writing)  # the thread ends

"""Following the log of a run while its ranks write it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context

from dpbench.record_log import LineReader
from dpbench.training.events import Event

POLL_SECONDS = 0.1


@contextmanager
def following(log: LineReader[Event], hear: Callable[[Event], None]) -> Iterator[None]:
    """Inside, a thread passes every new event to `hear`; at the end the last ones are passed too.

    An error of `hear` ends the passing on, and is raised at the end: the training is not its
    business.
    """
    ended = threading.Event()
    errors: list[Exception] = []

    def pass_on() -> None:
        try:
            last = False
            while not last:
                last = ended.wait(POLL_SECONDS)
                for event in log.new():
                    hear(event)
        except Exception as error:
            errors.append(error)

    # The context says who listens to what is said, and a thread begins without one.
    thread = threading.Thread(target=copy_context().run, args=(pass_on,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    if errors:
        raise errors[0]

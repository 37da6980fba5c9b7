"""What `dpbench` says beside its results: a line each, on stderr unless somebody else listens."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar


def to_stderr(message: str) -> None:
    print(f"dpbench: {message}", file=sys.stderr)


_listener: ContextVar[Callable[[str], None]] = ContextVar("listener", default=to_stderr)


def say(message: str) -> None:
    """What a terminal would act upon, in a file's name or a record, is written as an escape."""
    _listener.get()("".join(c if c.isprintable() else repr(c)[1:-1] for c in message))


def warn(*messages: str) -> None:
    for message in messages:
        say(f"warning: {message}")


@contextmanager
def said_to(listener: Callable[[str], None]) -> Iterator[None]:
    """Inside, in this thread, `listener` gets what would be said."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)

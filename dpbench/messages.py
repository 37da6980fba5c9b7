"""Results on stdout, messages beside them, and escaping of texts from elsewhere.

Messages take one line each and go to stderr unless somebody else listens. What a terminal would act
upon is escaped.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TextIO

Say = Callable[[str], None]
"""Prints a line, or passes it on."""

_COMMANDS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters
    "\u200e\u200f\u061c\u202a-\u202e\u2066-\u2069]"  # what turns the direction of writing
)
_results: list[TextIO] = []


def keep_for_results(stream: TextIO) -> None:
    """Send results to this stream from now on; other output still goes to sys.stdout."""
    _results[:] = [stream]


def print_result(text: str) -> None:
    """Prints what the command was asked for on the stdout that the user gave, with escapes for what
    a terminal would act upon, but for tabs and line ends."""
    text = _COMMANDS.sub(lambda found: repr(found[0])[1:-1], text)
    print(text, end="", file=_results[0] if _results else sys.stdout, flush=True)


def to_stderr(message: str) -> None:
    print(f"dpbench: {message}", file=sys.stderr)


_listener: ContextVar[Say] = ContextVar("listener", default=to_stderr)


def say(*messages: str) -> None:
    """Passes on messages, with escapes for what a terminal would act upon."""
    for message in messages:
        _listener.get()(escaped(message))


def warn(*messages: str) -> None:
    say(*(f"warning: {message}" for message in messages))


@contextmanager
def said_to(listener: Say) -> Iterator[None]:
    """Inside, in this thread, `listener` gets what would be said."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def printable(text: str, longest: int) -> str:
    """The text with escapes for what a terminal would act upon; "…" where it is cut."""
    shown = escaped(text[: longest + 1])
    return shown if len(shown) <= longest else f"{shown[: longest - 1]}…"


def one_line(text: str) -> str:
    """Text that cannot break a table or a terminal: no control characters, single spaces."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def escaped(text: str) -> str:
    """Control characters as escapes; asking the whole first is quick, and nearly always enough."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)

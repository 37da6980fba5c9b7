"""Results on stdout, messages beside them, their words, and escaping of texts from elsewhere.

Messages take one line each and go to stderr unless somebody else listens. They name an option as
it is typed, in calls from Python, too. What a terminal would act upon is escaped.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TextIO

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
    """Print what the command was asked for on the stdout that the user gave, with escapes for what
    a terminal would act upon, but for tabs and line ends."""
    text = _COMMANDS.sub(lambda match: repr(match[0])[1:-1], text)
    print(text, end="", file=_results[0] if _results else sys.stdout, flush=True)


def to_stderr(message: str) -> None:
    print(f"dpbench: {message}", file=sys.stderr)


_listener: ContextVar[Say] = ContextVar("listener", default=to_stderr)


def say(*messages: str) -> None:
    """Pass on messages, with escapes for what a terminal would act upon."""
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


def one_line(text: str) -> str:
    """Text that cannot break a table or a terminal: no control characters, single spaces."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def escaped(text: str, longest: int | None = None) -> str:
    """The text with escapes for what a terminal would act upon; "…" where it is cut."""
    text = text if longest is None else text[: longest + 1]
    if not text.isprintable():  # to ask the whole is quick, and nearly always enough
        text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    return text if longest is None or len(text) <= longest else f"{text[: longest - 1]}…"


def option_words(field: str, *values: Any) -> str:
    """Write an option as it is typed: "--gpus 0,1"; "--gpus" without a value, "--resume" for a
    flag."""
    typed = [shlex.quote(as_typed(value)) for value in values if value is not True]
    # Models of pydantic have a `json`, so that the field is `as_json`.
    return " ".join((f"--{field.removeprefix('as_').replace('_', '-')}", *typed))


def as_typed(value: Any, none: str = "None") -> str:
    """Write a value as a shell would have it: [32, 64] as "32,64"; None as the word for it."""
    if isinstance(value, list | tuple):
        return ",".join(as_typed(each, none) for each in value)
    if value is None:
        return none
    return str(value).removesuffix(".0") if isinstance(value, float) else str(value)

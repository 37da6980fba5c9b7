"""What `dpbench` says beside its results: a line each, on stderr."""

from __future__ import annotations

import sys


def say(message: str) -> None:
    """What a terminal would act upon, in a file's name or a record, is written as an escape."""
    line = "".join(c if c.isprintable() else repr(c)[1:-1] for c in message)
    print(f"dpbench: {line}", file=sys.stderr)


def warn(*messages: str) -> None:
    for message in messages:
        say(f"warning: {message}")

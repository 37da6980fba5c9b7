"""What `dpbench` says beside its results: a line each, on stderr."""

from __future__ import annotations

import sys


def say(message: str) -> None:
    print(f"dpbench: {message}", file=sys.stderr)


def warn(*messages: str) -> None:
    for message in messages:
        say(f"warning: {message}")

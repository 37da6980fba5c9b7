"""One kind of fault, tried many times, and what came of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Try:
    """One fault; `problem` is None if everything held."""

    problem: str | None = None
    seconds: float | None = None
    """From the fault to the verdict, where that is what users wait for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scenario:
    """`run(tries)` yields a Try for each fault; raises CannotTry where this machine has no way."""

    name: str
    promise: str
    tries: int
    run: Callable[[int], Iterator[Try]]


class CannotTry(Exception):
    """Says why."""


def expect(**checks: bool) -> str | None:
    """The names of the checks that failed, as a problem; None if all hold."""
    failed = [name.replace("_", " ") for name, holds in checks.items() if not holds]
    return f"not so: {', '.join(failed)}" if failed else None

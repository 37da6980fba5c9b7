"""A clock for the phases of a training step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

Mark = tuple[str | None, Any]
"""The name of a phase, or None for the end of the last one, and the time at which it begins."""


class PhaseClock:
    """Notes when each phase of a step begins. It is off, and costs nothing, until it is `running`.

    What takes a step calls `enter`; what measures the step reads the marks.
    """

    def __init__(self) -> None:
        self._now: Callable[[], Any] | None = None
        self._marks: list[Mark] = []

    def enter(self, phase: str | None) -> None:
        """Say that a phase begins, or with None that the last one has ended."""
        if self._now is not None:
            self._marks.append((phase, self._now()))

    @contextmanager
    def running(self, now: Callable[[], Any]) -> Iterator[Sequence[Mark]]:
        """Note what is entered in this context, with the time that `now` returns."""
        self._now, self._marks = now, []
        try:
            yield self._marks
        finally:
            self._now = None


def seconds_by_phase(marks: Sequence[Mark]) -> Counter[str]:
    """The sum of the seconds of each phase, for a clock in seconds."""
    seconds: Counter[str] = Counter()
    for (phase, begin), (_, end) in pairwise(marks):
        if phase is not None:
            seconds[phase] += end - begin
    return seconds

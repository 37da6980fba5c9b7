"""Progress on stderr: a live view on a terminal, a line per trial anywhere else.

The live view redraws twice a second at the most, so that the launching process stays under two
percent of a core while a timed window runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from types import TracebackType
from typing import Protocol, Self

from rich import live
from rich.console import Console
from rich.text import Text

from dpbench.records import Status
from dpbench.report.progress.state import ProgressState, TimeLeft
from dpbench.report.progress.terminal import REDRAWS_PER_SECOND, can_draw
from dpbench.report.progress.view import frame
from dpbench.report.progress.words import Record, Spec, describe, left
from dpbench.store.live import LivePage

MARGIN = 1
"""Lines of the terminal that the view leaves free: a cursor stands below it."""


class Reporter(Protocol):
    """Hears of every trial of a sweep, or measurement of a collective."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def planned(self, specs: Sequence[Spec]) -> None:
        """These run next, and nothing else until they have ended."""

    def started(self, spec: Spec) -> None: ...

    def finished(self, record: Record) -> None: ...


def reporter(
    *,
    quiet: bool,
    earlier: Sequence[Record] = (),
    grows: bool = False,
    noun: str = "trial",
    page: LivePage | None = None,
) -> Reporter:
    """The reporter that fits stderr. `earlier` is stored already; `grows` if nobody knows how many
    trials there will be, each a `noun`; `page` has the steps of the one that runs."""
    console = Console(stderr=True, highlight=False)
    if quiet:
        return Silent()
    if not can_draw(console):
        return Lines(console)
    state = ProgressState(grows=grows, noun=noun)
    for record in earlier:
        state.finished(record)
    return Live(console, state, page)


class Silent:
    """Says nothing; failures are in the table."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def planned(self, specs: Sequence[Spec]) -> None:
        pass

    def started(self, spec: Spec) -> None:
        pass

    def finished(self, record: Record) -> None:
        pass


class Lines(Silent):
    """A line per trial, when it is over."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._total = 0
        self._done = 0
        self._time_left = TimeLeft()

    def planned(self, specs: Sequence[Spec]) -> None:
        self._total, self._done = len(specs), 0
        self._time_left.planned(specs)

    def finished(self, record: Record) -> None:
        self._done += 1
        self._time_left.finished(record)
        seconds = self._time_left.seconds()
        rest = f", {left(seconds)}" if seconds and self._done < self._total else ""
        line = f"[{self._done}/{self._total}] {describe(record)}{rest}"
        self._console.print(line, markup=False, soft_wrap=True)


class Live(Silent):
    """A view that changes below what stays: failures, and what else is said."""

    def __init__(self, console: Console, state: ProgressState, page: LivePage | None) -> None:
        self._console = console
        self._state = state
        self._page = page
        self._lock = Lock()  # the view is drawn by a thread of its own
        self._view = live.Live(
            get_renderable=self._frame,
            console=console,
            refresh_per_second=REDRAWS_PER_SECOND,
            transient=True,
            vertical_overflow="crop",
            redirect_stdout=False,
        )

    def __enter__(self) -> Self:
        self._view.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._view.stop()

    def planned(self, specs: Sequence[Spec]) -> None:
        with self._lock:
            self._state.planned(specs)

    def started(self, spec: Spec) -> None:
        with self._lock:
            self._state.started(spec)

    def finished(self, record: Record) -> None:
        with self._lock:
            self._state.finished(record)
        if record.status not in (Status.COMPLETED, Status.SKIPPED):
            self._console.print(describe(record), markup=False, soft_wrap=True)

    def _frame(self) -> Text:
        with self._lock:
            moment = self._page.read() if self._page else None
            size = self._console.size
            return frame(self._state, moment, size.width, size.height - MARGIN)

"""Progress on stderr: a live view on a terminal, a line per trial anywhere else.

The live view redraws twice a second at the most, so that the launching process stays under two
percent of a core while a timed window runs. Its lines are put together from plain strings, in as
many columns and lines as the terminal has: a table of rich's own takes ten times as long.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from types import TracebackType
from typing import Protocol, Self

from rich import live
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from dpbench import units
from dpbench.messages import one_line
from dpbench.records.trial import Status
from dpbench.report.progress.state import (
    Current,
    ProgressState,
    Record,
    Row,
    Spec,
    TimeLeft,
    describe,
    left,
    speed,
)
from dpbench.report.progress.terminal import REDRAWS_PER_SECOND, can_draw

STYLES = {
    "queued": "dim",
    "running": "bold cyan",
    "done": "green",
    "failed": "bold red",
    "skipped": "yellow",
}
LONGEST_BAR = 48
SHORTEST_BAR = 6
STATE, RUNS = 7, "runs"
SHORTEST_LABEL, SHORTEST_SPEED, SHORTEST_WORDS = 24, 8, 16
LONGEST_UNIT = 12
GAP = "  "
FEWEST_ROWS = 3
"""The table is left out where not even these, a header and the counts of the others fit."""
IN_ALL = "in all"
"""The words before the progress bar."""


def frame(state: ProgressState, width: int, height: int) -> Text:
    """The table above the trial that runs."""
    below = _below(state, width)
    room = height - len(below) - 1  # an empty line
    table = room > min(len(state.rows), FEWEST_ROWS + 2)
    lines = [*_table(state, width, room), Text(), *below] if table else below[-height:]
    return Text("\n", no_wrap=True, overflow="crop").join(lines)


def _table(state: ProgressState, width: int, height: int) -> list[Text]:
    """The header and all rows, or as many as fit around the one that runs."""
    rows, columns = state.rows, Columns.fitting(state.rows, width)
    first, end = _around(state.latest, len(rows), height - 1)
    above = [_elsewhere("↑", "above", rows[:first], width)] if first else []
    below = [_elsewhere("↓", "below", rows[end:], width)] if end < len(rows) else []
    return [columns.header(), *above, *map(columns.line, rows[first:end]), *below]


def _around(place: int, count: int, room: int) -> tuple[int, int]:
    """The rows to show of `count`: all, or those around `place`, with a line for those above and
    one for those below if there are any."""
    if count <= room:
        return 0, count
    first = place - (room - 2) // 2
    if first <= 1:
        return 0, room - 1
    if first + room - 2 >= count - 1:
        return count - (room - 1), count
    return first, first + room - 2


def _elsewhere(arrow: str, where: str, rows: Sequence[Row], width: int) -> Text:
    """Writes "↓ 12 rows below: 10 queued, 2 failed"."""
    states = [row.state for row in rows]
    counts = ", ".join(f"{states.count(state)} {state}" for state in STYLES if state in states)
    text = f"{arrow} {units.counted(len(rows), 'row')} {where}: {counts}"
    return Text(fitted(text, width).rstrip(), style="dim")


def _below(state: ProgressState, width: int) -> list[Text]:
    """The trial that runs, and the sweep as a whole."""
    trials = _trials(state)
    share = state.done / state.planned_in_all if state.planned_in_all else 0.0
    lines = [_progress(share, trials, width)]
    if state.current is None:
        return lines
    return [_current(state, state.current, width), *lines]


def _current(state: ProgressState, current: Current, width: int) -> Text:
    spec, row = current.spec, state.rows[current.place]
    text = f"{spec.label}, repetition {spec.repetition + 1} of {row.planned}"
    seconds = int(state.elapsed_seconds())
    elapsed = f"  {units.seconds(seconds)}" if seconds else ""
    return Text.assemble((fitted(text, width - len(elapsed)).rstrip(), "bold cyan"), elapsed)


def _trials(state: ProgressState) -> str:
    """Writes "23/60 trials, 3 min 20 s left"."""
    seconds = state.seconds_left()
    parts = [f"{state.done:,}/{units.counted(state.planned_in_all, state.noun)}"]
    if seconds is not None and state.done < state.planned_in_all:
        parts.append(left(round(seconds)))
    if state.grows:
        parts.append("more may follow")
    return ", ".join(parts)


def _progress(share: float, text: str, width: int) -> Text:
    """A bar on its track, if there is room for one, and the share of it in numbers."""
    line = Text(IN_ALL)
    room = width - len(IN_ALL) - 2 - len(text) - 2
    if room >= SHORTEST_BAR:
        size = min(room, LONGEST_BAR)
        filled = bar(share, size)
        line.append("  ").append(filled, "green").append("─" * (size - len(filled)), "dim")
    line.append(fitted(f"  {text}", width - len(line)).rstrip())
    return line


@dataclass(frozen=True, kw_only=True, slots=True)
class Columns:
    """Widths of the columns; 0 for one that has no room. State and configuration always have."""

    label: int
    speed: int
    runs: int
    bar: int
    unit: str
    fastest: Mapping[str, float]
    """The highest speed of each work."""

    @classmethod
    def fitting(cls, rows: Sequence[Row], width: int) -> Self:
        """Gives room to what matters most: state, configuration, speed, runs, bar."""
        items = {row.item for row in rows if row.item}
        item = one_line(items.pop()) if len(items) == 1 else "items"
        unit = f"{item}/s"[:LONGEST_UNIT] if any(row.item for row in rows) else ""
        fastest: dict[str, float] = {}
        for row in rows:
            fastest[row.work] = max(fastest.get(row.work, 0.0), row.speed or 0.0)
        wanted = max((cell_len(row.label) for row in rows), default=0)
        room = max(width - STATE - len(GAP), 1)
        label = min(wanted, SHORTEST_LABEL, room)
        room -= label

        def taken(size: int) -> int:
            """`size` if it still fits, behind a gap, else 0."""
            nonlocal room
            if room < size + len(GAP):
                return 0
            room -= size + len(GAP)
            return size

        digits = max((len(_number(row.speed)) for row in rows), default=0)
        numbers = taken(max(SHORTEST_SPEED, len(unit), digits))
        runs = taken(max((len(RUNS), *(len(_runs(row)) for row in rows))))
        longer = min(wanted - label, room)
        longest = min(room - longer - len(GAP), LONGEST_BAR)
        bar = longest if numbers and longest >= SHORTEST_BAR else 0
        return cls(
            label=label + longer, speed=numbers, runs=runs, bar=bar, unit=unit, fastest=fastest
        )

    def header(self) -> Text:
        cells = ["state".ljust(STATE), fitted("configuration", self.label)]
        if self.runs:
            cells.append(RUNS.rjust(self.runs))
        if self.speed:
            cells.append(self.unit.rjust(self.speed))
        return Text(GAP.join(cells), style="dim")

    def line(self, row: Row) -> Text:
        text = Text()
        text.append(row.state.ljust(STATE), STYLES[row.state])
        emphasis = "bold" if row.running else "dim" if row.state == "queued" else None
        text.append(GAP + fitted(row.label, self.label), emphasis)
        if self.runs:
            text.append(GAP + _runs(row).rjust(self.runs), emphasis)
        if row.failed or row.speed is None:
            room = self.speed + (len(GAP) + self.bar if self.bar else 0)
            if row.remark and room >= SHORTEST_WORDS:
                text.append(GAP + fitted(one_line(row.remark), room).rstrip(), "dim")
            return text
        if self.speed:
            text.append(GAP + _number(row.speed).rjust(self.speed), emphasis)
        if self.bar and (fastest := self.fastest.get(row.work)):
            text.append(GAP + bar(row.speed / fastest, self.bar), "blue")
        return text


def bar(share: float, width: int) -> str:
    """Draws `share` of a line of `width`, to half a column."""
    halves = round(2 * width * min(share, 1.0))
    return "━" * (halves // 2) + "╸" * (halves % 2)


def fitted(text: str, width: int) -> str:
    """`text` in exactly `width` columns; an ellipsis ends what was cut."""
    if cell_len(text) <= width:
        return set_cell_size(text, width)
    return set_cell_size(text, width - 1) + "…"


def _runs(row: Row) -> str:
    return f"{row.done}/{row.planned}"


def _number(items_per_second: float | None) -> str:
    return "" if items_per_second is None else speed(items_per_second)


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
) -> Reporter:
    """The reporter that fits stderr. `earlier` is stored already; `grows` if nobody knows how many
    trials there will be, each a `noun`."""
    console = Console(stderr=True, highlight=False)
    if quiet:
        return Silent()
    if not can_draw(console):
        return Lines(console)
    state = ProgressState(grows=grows, noun=noun)
    for record in earlier:
        state.finished(record)
    return Live(console, state)


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

    def __init__(self, console: Console, state: ProgressState) -> None:
        self._console = console
        self._state = state
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
            size = self._console.size
            return frame(self._state, size.width, size.height - MARGIN)

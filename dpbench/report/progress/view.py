"""The progress of a sweep as text, in as many columns and lines as a terminal has.

Lines are put together from plain strings: a table of rich's own takes ten times as long, and the
launching process must not take time from what it measures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from dpbench import units
from dpbench.messages import one_line
from dpbench.report.progress.state import Current, ProgressState, Row
from dpbench.report.progress.words import left, speed
from dpbench.store.live import Moment

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
STAGE_WIDTH = 19
"""Width of the words before a progress bar: those of the longest stage."""


def frame(state: ProgressState, moment: Moment | None, width: int, height: int) -> Text:
    """The table above the trial that runs; `moment` is None where nothing tells its steps."""
    below = _below(state, moment, width)
    room = height - len(below) - 1  # an empty line
    table = room > min(len(state.rows), FEWEST_ROWS + 2)
    lines = [*_table(state, width, room), Text(), *below] if table else below[-height:]
    return Text("\n", no_wrap=True, overflow="crop").join(lines)


def whole_height(state: ProgressState) -> int:
    """Lines of a frame in which nothing is left out."""
    return len(state.rows) + 1 + 4


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


def _below(state: ProgressState, moment: Moment | None, width: int) -> list[Text]:
    """The trial that runs, its stage, and the sweep as a whole."""
    trials = _trials(state)
    steps = _steps(moment)
    size = _bar_size(width, trials, steps)
    share = state.done / state.planned_in_all if state.planned_in_all else 0.0
    lines = [_progress("in all", share, trials, size, width)]
    if state.current is None:
        return lines
    current = _current(state, state.current, width)
    if moment is None:
        return [current, *lines]
    done = moment.steps_done / moment.steps if moment.steps and moment.steps_done else 0.0
    words = moment.stage.words
    if not moment.steps_visible:
        words, steps, done = "running", "steps are not visible", 0.0
    stage = _progress(words, done, steps, size, width)
    return [current, stage, *lines]


def _current(state: ProgressState, current: Current, width: int) -> Text:
    spec, row = current.spec, state.rows[current.place]
    text = f"{spec.label}, repetition {spec.repetition + 1} of {row.planned}"
    seconds = int(state.elapsed_seconds())
    elapsed = f"  {units.seconds(seconds)}" if seconds else ""
    return Text.assemble((fitted(text, width - len(elapsed)).rstrip(), "bold cyan"), elapsed)


def _steps(moment: Moment | None) -> str:
    """Writes "31/50 steps"."""
    if moment is None or moment.steps is None:
        return ""
    return f"{moment.steps_done:,}/{moment.steps:,} steps"


def _trials(state: ProgressState) -> str:
    """Writes "23/60 trials, 3 min 20 s left"."""
    seconds = state.seconds_left()
    parts = [f"{state.done:,}/{units.counted(state.planned_in_all, state.noun)}"]
    if seconds is not None and state.done < state.planned_in_all:
        parts.append(left(round(seconds)))
    if state.grows:
        parts.append("more may follow")
    return ", ".join(parts)


def _bar_size(width: int, *texts: str) -> int:
    """Width of all bars, so that they line up; 0 if there is no room."""
    room = width - STAGE_WIDTH - 2 - max(map(len, texts)) - 2
    return min(room, LONGEST_BAR) if room >= SHORTEST_BAR else 0


def _progress(words: str, share: float, text: str, size: int, width: int) -> Text:
    """Words, a bar of `size` on its track, and the share of it in numbers."""
    line = Text(fitted(words, STAGE_WIDTH))
    if size:
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

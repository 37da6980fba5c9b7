"""The rows of a running sweep in columns that fit the terminal.

Lines are put together from plain strings: a table of rich's own takes ten times as long, and the
launching process must not take time from what it measures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from dpbench.cli.standing import Row
from dpbench.cli.trial_words import speed
from dpbench.printable import one_line

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


@dataclass(frozen=True, kw_only=True, slots=True)
class Columns:
    """Widths of the columns; 0 for one that has no room. State and configuration always have."""

    label: int
    speed: int
    runs: int
    bar: int
    unit: str
    fastest: float | None

    @classmethod
    def fitting(cls, rows: Sequence[Row], width: int) -> Self:
        """Gives room to what matters most: state, configuration, speed, runs, bar."""
        items = {row.item for row in rows if row.item}
        unit = f"{one_line(items.pop())}/s"[:LONGEST_UNIT] if items else ""
        fastest = max((row.speed for row in rows if row.speed is not None), default=None)
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
            if row.said and room >= SHORTEST_WORDS:
                text.append(GAP + fitted(one_line(row.said), room).rstrip(), "dim")
            return text
        if self.speed:
            text.append(GAP + _number(row.speed).rjust(self.speed), emphasis)
        if self.bar and self.fastest:
            text.append(GAP + bar(row.speed / self.fastest, self.bar), "blue")
        return text


def bar(share: float, width: int) -> str:
    """So much of a line of `width`, to half a column."""
    halves = round(2 * width * min(share, 1.0))
    return "━" * (halves // 2) + "╸" * (halves % 2)


def fitted(text: str, width: int) -> str:
    """`text` in exactly `width` columns; an ellipsis ends what was cut."""
    if cell_len(text) <= width:
        return set_cell_size(text, width)
    return set_cell_size(text, width - 1) + "…"


def _runs(row: Row) -> str:
    return f"{row.done}/{row.asked}"


def _number(items_per_second: float | None) -> str:
    return "" if items_per_second is None else speed(items_per_second)

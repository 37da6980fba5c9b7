"""What a sweep looks like while it runs, in as many columns and lines as a terminal has."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from dpbench import units
from dpbench.cli.live_rows import LONGEST_BAR, SHORTEST_BAR, STYLES, Columns, bar, fitted
from dpbench.cli.standing import Current, Row, Standing
from dpbench.cli.trial_words import left
from dpbench.live import Moment

FEWEST_ROWS = 3
"""With less room than for these, a header and what is said of the others there is no table."""
WORDS = 19
"""Width of what stands before a progress bar, the longest stage."""


def frame(standing: Standing, moment: Moment | None, width: int, height: int) -> Text:
    """The table above the trial that runs; `moment` is None where nothing tells its steps."""
    below = _below(standing, moment, width)
    room = height - len(below) - 1  # an empty line
    table = room > min(len(standing.rows), FEWEST_ROWS + 2)
    lines = [*_table(standing, width, room), Text(), *below] if table else below[-height:]
    return Text("\n", no_wrap=True, overflow="crop").join(lines)


def whole_height(standing: Standing) -> int:
    """Of a frame in which nothing is left out."""
    return len(standing.rows) + 1 + 4


def _table(standing: Standing, width: int, height: int) -> list[Text]:
    """The header and all rows, or as many as fit around the one that runs."""
    rows, columns = standing.rows, Columns.fitting(standing.rows, width)
    first, end = _around(standing.latest, len(rows), height - 1)
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


def _below(standing: Standing, moment: Moment | None, width: int) -> list[Text]:
    """The trial that runs, its stage, and the sweep as a whole."""
    trials = _trials(standing)
    steps = _steps(moment)
    size = _bar_size(width, trials, steps)
    share = standing.done / standing.planned_in_all if standing.planned_in_all else 0.0
    lines = [_progress("in all", share, trials, size, width)]
    if standing.current is None:
        return lines
    current = _current(standing, standing.current, width)
    if moment is None:
        return [current, *lines]
    done = moment.steps_done / moment.steps if moment.steps and moment.steps_done else 0.0
    words = moment.stage.words
    if not moment.steps_visible:
        words, steps, done = "running", "steps are not visible", 0.0
    stage = _progress(words, done, steps, size, width)
    return [current, stage, *lines]


def _current(standing: Standing, current: Current, width: int) -> Text:
    spec, row = current.spec, standing.rows[current.place]
    text = f"{spec.label}, repetition {spec.repetition + 1} of {row.asked}"
    seconds = int(standing.elapsed_seconds())
    elapsed = f"  {units.seconds(seconds)}" if seconds else ""
    return Text.assemble((fitted(text, width - len(elapsed)).rstrip(), "bold cyan"), elapsed)


def _steps(moment: Moment | None) -> str:
    """Writes "31/50 steps"."""
    if moment is None or moment.steps is None:
        return ""
    return f"{moment.steps_done:,}/{moment.steps:,} steps"


def _trials(standing: Standing) -> str:
    """Writes "23/60 trials, 3 min 20 s left"."""
    seconds = standing.seconds_left()
    parts = [f"{standing.done:,}/{units.counted(standing.planned_in_all, standing.noun)}"]
    if seconds is not None and standing.done < standing.planned_in_all:
        parts.append(left(round(seconds)))
    if standing.grows:
        parts.append("more may follow")
    return ", ".join(parts)


def _bar_size(width: int, *texts: str) -> int:
    """Of all bars that stand above each other; 0 if there is no room."""
    room = width - WORDS - 2 - max(map(len, texts)) - 2
    return min(room, LONGEST_BAR) if room >= SHORTEST_BAR else 0


def _progress(words: str, share: float, text: str, size: int, width: int) -> Text:
    """Words, a bar of `size` on its track, and how far that is."""
    line = Text(fitted(words, WORDS))
    if size:
        filled = bar(share, size)
        line.append("  ").append(filled, "green").append("─" * (size - len(filled)), "dim")
    line.append(fitted(f"  {text}", width - len(line)).rstrip())
    return line

"""How long single steps took, rank by rank: who waits, and how often a step is late."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes

from dpbench.analysis.analyze import Analysis
from dpbench.analysis.diagnosis.explanation import slowest_of
from dpbench.analysis.rows import Row
from dpbench.messages import one_line
from dpbench.report.charts.kinds import NothingToDraw
from dpbench.report.charts.style import (
    INK,
    Drawn,
    case_panels,
    series_styles,
    time_axis,
    write_beside,
)

MAX_RANKS = 4
"""Most ranks of a configuration that are drawn; the slowest is always among them."""


def step_times(analysis: Analysis) -> Drawn:
    """One bar per rank for the timed steps, and below it a pale one without synchronization."""
    ranks: dict[Row, list[int]] = {}
    for row in analysis.rows:
        measured = row.records[0].ranks if row.records else ()
        if measured and all(len(rank.timed.step_seconds) > 1 for rank in measured):
            ranks[row] = [*range(len(measured))][:MAX_RANKS]
            slowest = slowest_of(row.records)
            if slowest is not None and slowest.rank not in ranks[row]:
                ranks[row][-1] = slowest.rank
    if not ranks:
        raise NothingToDraw("no completed trial has two timed steps or more")
    figure, panels, left_out = case_panels(ranks, lambda row: len(ranks[row]))
    styles = series_styles(ranks)
    for axis, rows in panels:
        windows = {
            (row, rank): [np.array(record.ranks[rank].timed.step_seconds) for record in row.records]
            for row in rows
            for rank in ranks[row]
        }
        names: list[str] = []
        for (row, rank), repetitions in windows.items():
            place = len(names)
            color = styles[row.series]["color"]
            _draw_steps(axis, place - 0.14, np.concatenate(repetitions), color)
            alone = [record.ranks[rank].windows.get("unsynced") for record in row.records]
            bare = [window.step_seconds for window in alone if window and window.step_seconds]
            if len(bare) == len(repetitions):
                _draw_steps(axis, place + 0.22, np.concatenate(bare), color, alpha=0.4)
            slowest = slowest_of(row.records)
            if slowest is not None and slowest.rank == rank:
                write_beside(axis, place, f"slowest {slowest.slowest_in}/{slowest.repetitions}")
            first = f"{one_line(row.series)}  " if rank == ranks[row][0] else ""
            number = f"rank {rank}" if len(row.records[0].ranks) > 1 else ""
            names.append(first + number)
        axis.set_yticks(range(len(names)), names)
        time_axis(axis, "step time")
    remarks = (
        "bar: the middle half of the steps; line: 5 to 95 %; tick: median; pale: steps without "
        "synchronization",
        "slowest 3/4: this rank was the slowest in 3 of 4 repetitions",
    )
    return Drawn(figure, [], [*remarks, *left_out])


def _draw_steps(
    axis: Axes, place: float, seconds: np.ndarray, color: str, *, alpha: float = 1.0
) -> None:
    """A line from 5 to 95 %, a bar over the middle half, and a tick at the median."""
    low, lower, middle, upper, high = np.percentile(seconds, [5, 25, 50, 75, 95])
    axis.plot([low, high], [place] * 2, color=color, alpha=alpha, linewidth=1.0)
    axis.barh(place, upper - lower, left=lower, height=0.3, color=color, alpha=alpha)
    axis.plot([middle] * 2, [place - 0.15, place + 0.15], color=INK, linewidth=1.2)

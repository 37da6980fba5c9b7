"""How long single steps took, rank by rank: who waits, and how often a step is late."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes

from dpbench import units
from dpbench.analysis.diagnosis.explanation import slowest_of
from dpbench.analysis.row import Row
from dpbench.analysis.steps import RankSteps, rank_steps
from dpbench.analysis.subject import Subject
from dpbench.messages import one_line
from dpbench.report.charts.kinds import NothingToDraw
from dpbench.report.charts.style import (
    INK,
    Drawn,
    case_panels,
    scaled_axis,
    series_of,
    series_styles,
    write_beside,
)

MOST_RANKS = 4
"""Most ranks of a configuration that are drawn; the slowest is always among them."""
FARTHEST = 3.0
"""Times the slowest median: steps beyond are counted at the edge, so that others have room."""


def step_times(subject: Subject) -> Drawn:
    """One bar per rank for the timed steps, and below it a pale one without synchronization."""
    every = {one: _ranks(one) for one in subject.rows if one.records}
    ranks = {one: own for one, own in every.items() if all(len(rank.timed) > 1 for rank in own)}
    if not ranks:
        raise NothingToDraw("no completed trial has two timed steps or more")
    figure, panels, left_out = case_panels(ranks, lambda row: len(ranks[row]))
    styles = series_styles([series_of(one) for one in ranks])
    for axis, rows in panels:
        shown = [rank for row in rows for rank in ranks[row]]
        edge = FARTHEST * max(float(np.median(rank.timed)) for rank in shown)
        names: list[str] = []
        for row in rows:
            slowest = slowest_of(row.records)
            for rank in ranks[row]:
                place, color = len(names), styles[series_of(row)]["color"]
                _draw_steps(axis, place - 0.14, rank.timed, color)
                if rank.alone is not None:
                    _draw_steps(axis, place + 0.22, rank.alone, color, alpha=0.4)
                late = rank.outliers[rank.outliers <= edge]
                axis.plot(late, [place - 0.14] * len(late), "o", color=color, mfc="white")
                words = []
                if slowest is not None and slowest.rank == rank.rank:
                    words.append(f"slowest {slowest.slowest_in}/{slowest.repetitions}")
                if count := len(rank.outliers):
                    words.append(units.counted(count, "outlier"))
                if beyond := int((rank.timed > edge).sum()):
                    words.append(f"{beyond} up to {units.seconds(float(rank.timed.max()))} ▸")
                write_beside(axis, place, " · ".join(words))
                first = f"{one_line(row.series)}  " if rank is ranks[row][0] else ""
                number = f"rank {rank.rank}" if len(row.records[0].ranks) > 1 else ""
                names.append(first + number)
        axis.set_xlim(right=min(edge, axis.get_xlim()[1]))
        axis.set_yticks(range(len(names)), names)
        scaled_axis(axis, "s", "step time", which="x")
    remarks = (
        "bar: the middle half of the steps; line: 5 to 95 %; tick: median; pale: steps without "
        "synchronization",
        "circles: outliers, more than 10 σ slow",
        "slowest 3/4: this rank was the slowest in 3 of 4 repetitions",
    )
    return figure, [], [*remarks, *left_out]


def _ranks(one: Row) -> list[RankSteps]:
    """The first ranks, and the slowest one."""
    every, slowest = rank_steps(one.records), slowest_of(one.records)
    kept = [rank.rank for rank in every[:MOST_RANKS]]
    if slowest is not None and slowest.rank not in kept:
        kept = [*kept[:-1], slowest.rank]
    return [rank for rank in every if rank.rank in kept]


def _draw_steps(
    axis: Axes, place: float, seconds: np.ndarray, color: str, *, alpha: float = 1.0
) -> None:
    """A line from 5 to 95 %, a bar over the middle half, and a tick at the median."""
    low, lower, middle, upper, high = np.percentile(seconds, [5, 25, 50, 75, 95])
    axis.plot([low, high], [place] * 2, color=color, alpha=alpha, linewidth=1.0)
    axis.barh(place, upper - lower, left=lower, height=0.3, color=color, alpha=alpha)
    axis.plot([middle] * 2, [place - 0.15, place + 0.15], color=INK, linewidth=1.2)

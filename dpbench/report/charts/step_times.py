"""How long single steps took, rank by rank: who waits, for whom, and how often one is late."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from dpbench import units
from dpbench.analysis.diagnosis.explanation import SlowestRank, slowest_rank
from dpbench.analysis.estimate import Floats
from dpbench.analysis.steps import RankSteps, rank_steps
from dpbench.report.charts import bars
from dpbench.report.charts.bars import Case, Measured
from dpbench.report.charts.kinds import CHARTS
from dpbench.report.charts.source import ChartSource, NothingToDraw
from dpbench.report.charts.style import (
    INK,
    MUTED,
    SeriesName,
    SeriesStyle,
    finish,
    scaled_axis,
    series_styles,
)

MOST_ROWS = 32
"""Most rows of a chart, with those that titles and axes take."""
MOST_RANKS = 8
"""Most ranks of a configuration that are drawn; the slowest is always among them."""
MOST_OF_A_CASE = MOST_ROWS // 2
FEWEST_STEPS = 2
BINS = 72
KERNEL = np.array([1, 4, 6, 4, 1]) / 16
"""Takes the jaggedness off counts of few steps; its standard deviation is one bin."""
HALF = 0.44
"""Height in rows of the most frequent step time of a rank."""
FARTHEST = 3.0
"""Times the slowest median: steps beyond are counted at the edge, so that others have room."""
TIMED, ALONE = 0.85, 0.35
"""Opacity of what is above and below the line of a rank."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Row:
    """One rank of a configuration."""

    name: str
    style: SeriesStyle
    steps: RankSteps
    slowest: SlowestRank | None
    """The slowest rank's details, if it is this one."""


def step_times(source: ChartSource) -> Figure:
    """A panel a case, a row a rank: above its line the timed steps, below those without sync."""
    found = [one for one in bars.measured_rows(source) if _steps_of_a_rank(one) >= FEWEST_STEPS]
    if not found:
        raise NothingToDraw("no completed trial has two timed steps or more")
    shown = [
        case[:MOST_OF_A_CASE] for case in bars.cases_that_fit(bars.cases(found), MOST_ROWS, _count)
    ]
    most_ranks = min(MOST_RANKS, max(2, MOST_ROWS // max(map(len, shown))))
    styles = series_styles([(one.row.implementation, one.row.backend) for one in found])
    blocks = [[row for one in case for row in _rows(one, styles, most_ranks)] for case in shown]
    figure, axes = bars.stacked([len(block) for block in blocks])
    for axis, case, block in zip(axes, shown, blocks, strict=True):
        _panel(axis, block)
        axis.set_title(bars.case_title(case), pad=4)
    longest = [axis.get_xlim()[1] for axis in axes]
    for axis in axes:  # the same unit in all
        scaled_axis(axis.xaxis, longest, "s", "step time")
        if axis is not axes[-1]:
            axis.set_xlabel("")
    bars.legend(axes[0], _key([row for block in blocks for row in block]), right=True)
    return finish(
        figure,
        title=CHARTS["step-times"].title,
        caption=source.caption([], _remarks(shown, found, most_ranks)),
    )


def _steps_of_a_rank(one: Measured) -> int:
    """The fewest that any rank took in any repetition."""
    return min(len(rank.timed.step_seconds) for record in one.records for rank in record.ranks)


def _count(case: Case) -> int:
    ranks = sum(min(MOST_RANKS, len(one.records[0].ranks)) for one in case)
    return ranks + math.ceil(bars.ROWS_A_PANEL)


def _rows(one: Measured, styles: dict[SeriesName, SeriesStyle], most_ranks: int) -> list[_Row]:
    slowest = slowest_rank(one.records)
    every = rank_steps(one.records)
    wanted = {rank.rank for rank in every[:most_ranks]}
    if slowest is not None and slowest.rank not in wanted:
        wanted = {*sorted(wanted)[:-1], slowest.rank}
    rows: list[_Row] = []
    for rank in (rank for rank in every if rank.rank in wanted):
        name = f"rank {rank.rank}" if len(every) > 1 else ""
        rows.append(
            _Row(
                name=name if rows else f"{one.name}   {name}".rstrip(),
                style=styles[one.row.implementation, one.row.backend],
                steps=rank,
                slowest=slowest if slowest is not None and slowest.rank == rank.rank else None,
            )
        )
    return rows


def _panel(axes: Axes, rows: Sequence[_Row]) -> None:
    edges = _edges([row.steps for row in rows])
    for place, row in enumerate(rows):
        color = row.style.color
        axes.axhline(place, color=color, linewidth=0.8, zorder=1)
        _half(axes, place, row.steps.timed, edges, up=True, color=color)
        if row.steps.alone is not None:
            _half(axes, place, row.steps.alone, edges, up=False, color=color)
        inside = row.steps.outliers[row.steps.outliers <= edges[-1]]
        axes.plot(
            inside,
            np.full(len(inside), place),
            linestyle="none",
            marker="o",
            markersize=3.5,
            markerfacecolor="white",
            color=color,
        )
        bars.write_beside(axes, place, " · ".join(_said(row, edges[-1])))
    axes.set_xlim(edges[0], edges[-1])
    axes.set_yticks(range(len(rows)), [row.name for row in rows])
    axes.set_ylim(len(rows) - 0.4, -0.7)


def _edges(ranks: Sequence[RankSteps]) -> Floats:
    """Seconds between which steps are counted, from the fastest to the slowest one shown."""
    every = [values for rank in ranks for values in (rank.timed, rank.alone) if values is not None]
    low = min(float(values.min()) for values in every)
    far = FARTHEST * max(float(np.median(values)) for values in every)
    high = min(far, max(float(values.max()) for values in every))
    margin = 0.04 * (high - low) or 0.04 * high
    return np.linspace(max(0.0, low - margin), high + margin, BINS + 1)


def _half(axes: Axes, place: int, seconds: Floats, edges: Floats, *, up: bool, color: str) -> None:
    """The distribution as an area on the line of its row, with a tick at its median."""
    counts, _ = np.histogram(seconds, edges)
    smooth = np.convolve(counts, KERNEL, mode="same")
    height = -HALF if up else HALF
    seen = np.flatnonzero(smooth)
    stretch = slice(seen[0], seen[-1] + 1)
    axes.fill_between(
        ((edges[1:] + edges[:-1]) / 2)[stretch],
        place,
        place + (height * smooth / smooth.max())[stretch],
        color=color,
        alpha=TIMED if up else ALONE,
        linewidth=0,
    )
    median = float(np.median(seconds))
    axes.plot([median] * 2, [place, place + height], color=INK, linewidth=1)


def _said(row: _Row, end: float) -> list[str]:
    """Text at the right of a rank."""
    words = []
    if row.slowest is not None:
        words.append(f"slowest in {row.slowest.slowest_in} of {row.slowest.repetitions}")
    if late := len(row.steps.outliers):
        words.append(units.counted(late, "outlier"))
    worst = float(row.steps.timed.max())
    if worst > end:
        beyond = int((row.steps.timed > end).sum())
        words.append(f"{beyond} beyond, up to {units.seconds(worst)} ▸")
    return words


def _key(rows: Sequence[_Row]) -> list[Patch]:
    key = [Patch(color=MUTED, alpha=TIMED, linewidth=0, label="timed steps")]
    if any(row.steps.alone is not None for row in rows):
        key.append(Patch(color=MUTED, alpha=ALONE, linewidth=0, label="without synchronization"))
    return key


def _remarks(shown: Sequence[Case], found: Sequence[Measured], most_ranks: int) -> list[str]:
    drawn = [one for case in shown for one in case]
    steps = units.span([sum(_steps_of_rank_zero(one)) for one in drawn], "step")
    repetitions = units.span([len(one.records) for one in drawn], "repetition")
    remarks = [
        f"all {steps} of {repetitions}; heights: how many, tick: median",
        "circles: outliers, more than 10 σ slow",
        "slowest: in so many repetitions the rank that took longest without synchronization",
    ]
    if any(len(one.records[0].ranks) > most_ranks for one in drawn):
        remarks.append(f"{most_ranks} ranks of each at the most, the slowest among them")
    if len(drawn) < len(found):
        remarks.append(f"{len(drawn)} of {len(found):,} configurations")
    return remarks


def _steps_of_rank_zero(one: Measured) -> list[int]:
    return [len(record.ranks[0].timed.step_seconds) for record in one.records]

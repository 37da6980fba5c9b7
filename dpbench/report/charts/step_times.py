"""How long single steps took, rank by rank: who waits, and how often a step is late."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpbench import units
from dpbench.analysis.diagnosis.explanation import slowest_of
from dpbench.analysis.row import Row
from dpbench.analysis.steps import RankSteps, rank_steps
from dpbench.messages import one_line
from dpbench.report.charts.rows import case_title, cases, cases_that_fit
from dpbench.report.charts.source import ChartSource, NothingToDraw
from dpbench.report.charts.style import (
    INK,
    scaled_axis,
    series_of,
    series_styles,
    stacked,
    write_beside,
)

MOST_RANKS = 4
"""Most ranks of a configuration that are drawn; the slowest is always among them."""
FARTHEST = 3.0
"""Times the slowest median: steps beyond are counted at the edge, so that others have room."""
BINS = 60


def step_times(source: ChartSource) -> Figure:
    """One row per rank: above its line the timed steps, below those without synchronization."""
    ranks = {one: _ranks(one) for one in source.rows if one.records}
    found = [one for one, every in ranks.items() if all(len(rank.timed) > 1 for rank in every)]
    if not found:
        raise NothingToDraw("no completed trial has two timed steps or more")
    shown = cases_that_fit(cases(found), max(len(ranks[one]) for one in found))
    figure, axes = stacked([sum(len(ranks[one]) for one in case) for case in shown])
    styles = series_styles([series_of(one) for one in found])
    for axis, case in zip(axes, shown, strict=True):
        edges = _edges([rank for one in case for rank in ranks[one]])
        names: list[str] = []
        for one in case:
            slowest = slowest_of(one.records)
            for rank in ranks[one]:
                of_rank = f"rank {rank.rank}" if len(one.records[0].ranks) > 1 else ""
                _draw(axis, len(names), rank, edges, styles[series_of(one)]["color"])
                words = []
                if slowest is not None and slowest.rank == rank.rank:
                    words.append(f"slowest {slowest.slowest_in}/{slowest.repetitions}")
                if late := len(rank.outliers):
                    words.append(units.counted(late, "outlier"))
                if beyond := int((rank.timed > edges[-1]).sum()):
                    words.append(f"{beyond} up to {units.seconds(float(rank.timed.max()))} ▸")
                write_beside(axis, len(names), " · ".join(words))
                names.append(
                    f"{one_line(one.series)}  {of_rank}" if rank is ranks[one][0] else of_rank
                )
        axis.set_xlim(edges[0], edges[-1])
        axis.set_yticks(range(len(names)), names)
        axis.set_title(case_title(case), pad=4)
        scaled_axis(axis, "s", "step time", which="x")
    remarks = [
        "height: number of steps; tick: median; below the line: steps without synchronization",
        "circles: outliers, more than 10 σ slow",
        "slowest 3/4: this rank was the slowest in 3 of 4 repetitions",
    ]
    if (drawn := sum(map(len, shown))) < len(found):
        remarks.append(f"shows {drawn} of {len(found):,} configurations")
    return source.finish(figure, "step-times", [], remarks)


def _ranks(one: Row) -> list[RankSteps]:
    """The first ranks, and the slowest one."""
    every, slowest = rank_steps(one.records), slowest_of(one.records)
    kept = [rank.rank for rank in every[:MOST_RANKS]]
    if slowest is not None and slowest.rank not in kept:
        kept = [*kept[:-1], slowest.rank]
    return [rank for rank in every if rank.rank in kept]


def _edges(ranks: Sequence[RankSteps]) -> np.ndarray:
    """Seconds between which steps are counted, from the fastest to the slowest one shown."""
    every = [values for rank in ranks for values in (rank.timed, rank.alone) if values is not None]
    low = min(float(values.min()) for values in every)
    far = FARTHEST * max(float(np.median(values)) for values in every)
    high = min(far, max(float(values.max()) for values in every))
    margin = 0.04 * (high - low) or 0.04 * high
    return np.linspace(max(0.0, low - margin), high + margin, BINS + 1)


def _draw(axes: Axes, place: int, rank: RankSteps, edges: np.ndarray, color: str) -> None:
    axes.axhline(place, color=color, linewidth=0.8, zorder=1)
    middles = (edges[1:] + edges[:-1]) / 2
    for seconds, height, alpha in ((rank.timed, -0.44, 0.85), (rank.alone, 0.44, 0.35)):
        if seconds is None:
            continue
        counts, _ = np.histogram(seconds, edges)
        tops = place + height * counts / max(counts.max(), 1)
        axes.fill_between(middles, place, tops, color=color, alpha=alpha, step="mid", linewidth=0)
        axes.plot([float(np.median(seconds))] * 2, [place, place + height], color=INK, linewidth=1)
    inside = rank.outliers[rank.outliers <= edges[-1]]
    look: dict[str, Any] = {"markersize": 3.5, "markerfacecolor": "white", "color": color}
    axes.plot(inside, np.full(len(inside), place), "o", linestyle="none", **look)

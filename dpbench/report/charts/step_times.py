"""How long single steps took, rank by rank: who waits, and how often a step is late."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpbench import units
from dpbench.analysis.configuration import ConfigurationSummary
from dpbench.analysis.diagnosis.explanation import SlowestRank, slowest_rank
from dpbench.analysis.steps import RankSteps, rank_steps
from dpbench.report.charts.kinds import CHARTS
from dpbench.report.charts.rows import Measured, case_title, cases, cases_that_fit, measured_rows
from dpbench.report.charts.source import ChartSource, NothingToDraw
from dpbench.report.charts.style import (
    INK,
    finish,
    scaled_axis,
    series_styles,
    stacked,
    write_beside,
)

MOST_RANKS = 4
"""Most ranks of a configuration that are drawn; the slowest is always among them."""
FARTHEST = 3.0
"""Times the slowest median: steps beyond are counted at the edge, so that others have room."""
BINS = 60


@dataclass(frozen=True, kw_only=True, slots=True)
class _Steps:
    """A configuration and those of its ranks that are drawn."""

    measured: Measured
    ranks: tuple[RankSteps, ...]
    slowest: SlowestRank | None

    @property
    def row(self) -> ConfigurationSummary:
        return self.measured.row


def step_times(source: ChartSource) -> Figure:
    """One row per rank: above its line the timed steps, below those without synchronization."""
    found = [
        _steps(one)
        for one in measured_rows(source)
        if all(len(rank.timed.step_seconds) > 1 for record in one.records for rank in record.ranks)
    ]
    if not found:
        raise NothingToDraw("no completed trial has two timed steps or more")
    shown = cases_that_fit(cases(found), lambda one: len(one.ranks))
    figure, axes = stacked([sum(len(one.ranks) for one in case) for case in shown])
    styles = series_styles([(one.row.implementation, one.row.backend) for one in found])
    for axis, case in zip(axes, shown, strict=True):
        edges = _edges([rank for one in case for rank in one.ranks])
        names: list[str] = []
        for one in case:
            color = styles[one.row.implementation, one.row.backend].color
            for rank in one.ranks:
                of_rank = f"rank {rank.rank}" if len(one.measured.records[0].ranks) > 1 else ""
                is_first = rank is one.ranks[0]
                _draw(axis, len(names), rank, edges, color)
                write_beside(axis, len(names), " · ".join(_words(one, rank, edges[-1])))
                names.append(f"{one.measured.name}  {of_rank}" if is_first else of_rank)
        axis.set_xlim(edges[0], edges[-1])
        axis.set_yticks(range(len(names)), names)
        axis.set_title(case_title(case), pad=4)
        scaled_axis(axis, "s", "step time", which="x")
    drawn = [one for case in shown for one in case]
    remarks = [
        "heights: how many steps, tick: median; below the line: steps without synchronization",
        "circles: outliers, more than 10 σ slow",
    ]
    if len(drawn) < len(found):
        remarks.append(f"{len(drawn)} of {len(found):,} configurations")
    return finish(figure, title=CHARTS["step-times"].title, caption=source.caption([], remarks))


def _steps(one: Measured) -> _Steps:
    every, slowest = rank_steps(one.records), slowest_rank(one.records)
    kept = {rank.rank for rank in every[:MOST_RANKS]}
    if slowest is not None and slowest.rank not in kept:
        kept = {*sorted(kept)[:-1], slowest.rank}
    ranks = tuple(rank for rank in every if rank.rank in kept)
    return _Steps(measured=one, ranks=ranks, slowest=slowest)


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
    places = np.full(len(inside), place)
    axes.plot(
        inside, places, "o", linestyle="none", markersize=3.5, markerfacecolor="white", color=color
    )


def _words(one: _Steps, rank: RankSteps, end: float) -> list[str]:
    """Text at the right of a rank."""
    words = []
    if one.slowest is not None and one.slowest.rank == rank.rank:
        words.append(f"slowest in {one.slowest.slowest_in} of {one.slowest.repetitions}")
    if late := len(rank.outliers):
        words.append(units.counted(late, "outlier"))
    if (worst := float(rank.timed.max())) > end:
        beyond = int((rank.timed > end).sum())
        words.append(f"{beyond} beyond, up to {units.seconds(worst)} ▸")
    return words

"""Efficiency from linear scaling down to what was reached, a bar for every factor that costs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpbench.analysis.diagnosis.explanation import Explanation
from dpbench.analysis.diagnosis.factors import PARTS, Factor
from dpbench.analysis.estimate import Estimate
from dpbench.messages import one_line
from dpbench.report.charts.bars import write_beside
from dpbench.report.charts.kinds import CHARTS
from dpbench.report.charts.source import ChartSource, NothingToDraw
from dpbench.report.charts.style import (
    BLUE,
    GREEN,
    GRID,
    INK,
    MUTED,
    VERMILION,
    finish,
    panels,
)
from dpbench.report.numbers import plus_minus

MOST_PANELS = 12
WIDEST = 150
"""Percent; an interval that reaches further is cut off."""
HEIGHT = 0.6
COLOURS = (
    "number: what a part leaves of the efficiency; orange: a loss, green: a gain, grey: neither"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Bar:
    """One factor: from the efficiency above it down to the one below it, in percent."""

    factor: Factor
    top: float
    bottom: float
    middle: float
    """Position down the panel: the mean of its parts' rows."""

    @property
    def color(self) -> str:
        if not (self.factor.is_loss or self.is_gain):
            return GRID
        return GREEN if self.is_gain else VERMILION

    @property
    def is_gain(self) -> bool:
        return self.factor.value.interval is not None and self.factor.value.interval[0] > 1


def _efficiency(explanation: Explanation) -> float:
    reached = explanation.factors.efficiency
    return math.inf if reached is None else reached.value


def waterfall(source: ChartSource) -> Figure:
    """One panel a configuration of more than one replica, the largest groups first."""
    found = [
        explanation
        for explanation in source.explanations
        if explanation.row.group_size > 1 and explanation.factors.efficiency is not None
    ]
    if not found:
        raise NothingToDraw("no configuration of several replicas has `single` to compare with")
    shown, remarks = found, []
    if len(found) > MOST_PANELS:
        lowest = sorted(found, key=_efficiency)[:MOST_PANELS]
        shown = [explanation for explanation in found if explanation in lowest]
        remarks.append(
            f"of {len(found)} configurations the {MOST_PANELS} with the lowest efficiency"
        )
    shown.sort(key=lambda explanation: -explanation.row.group_size)
    rows = _rows(shown)
    widest = max(_furthest(explanation) for explanation in shown)
    if widest > WIDEST:
        remarks.append(f"cut off at {WIDEST} %")
    figure, axes = panels(len(shown), share_y=True)
    for axis, explanation in zip(axes, shown, strict=True):
        _draw(axis, explanation, rows)
        axis.set_xlim(0, min(max(widest, 104), WIDEST))
    for axis in axes[-min(3, len(axes)) :]:
        axis.set_xlabel("efficiency (% of linear scaling of single)")
    return finish(
        figure,
        title=CHARTS["waterfall"].title,
        caption=source.caption(_estimates(shown), [COLOURS, *remarks]),
    )


def _rows(explanations: Sequence[Explanation]) -> tuple[str, ...]:
    """Rows beside the bars; granularity only in strong scaling, otherwise it costs nothing."""
    strong = any(explanation.trial.scaling == "strong" for explanation in explanations)
    return ("linear", *(PARTS if strong else PARTS[1:]), "reached")


def _draw(axes: Axes, explanation: Explanation, rows: Sequence[str]) -> None:
    reached = explanation.factors.efficiency
    assert reached is not None
    last = len(rows) - 1
    axes.barh(0, 100, color=MUTED, height=HEIGHT)
    above = 0.0
    for bar in _bars(explanation.factors.factors, rows):
        height = HEIGHT + len(set(bar.factor.parts) & set(rows)) - 1
        axes.barh(bar.middle, bar.bottom - bar.top, left=bar.top, color=bar.color, height=height)
        axes.plot([bar.top] * 2, [above, bar.middle], color=MUTED, linewidth=0.7, zorder=1)
        _interval(axes, bar.factor.value, bar.middle, scale=bar.top)
        number = plus_minus(bar.factor.value, two_after_one=False, plain_decimals=2)
        known = bar.color != GRID
        write_beside(
            axes,
            bar.middle,
            f"× {number}",
            color=bar.color if known else MUTED,
            fontweight="bold" if known else "normal",
        )
        above = bar.middle
    end = 100 * reached.value
    axes.plot([end] * 2, [above, last], color=MUTED, linewidth=0.7, zorder=1)
    axes.barh(last, end, color=BLUE, height=HEIGHT)
    _interval(axes, reached, last, scale=100)
    written = plus_minus(reached, scale=100, plain_decimals=0)
    write_beside(axes, last, f"{written} %", color=BLUE, fontweight="bold")
    axes.set_yticks(range(len(rows)), rows)
    axes.set_ylim(last + 0.6, -0.6)
    axes.grid(False, axis="y")
    axes.set_title(one_line(explanation.row.label))


def _bars(factors: Sequence[Factor], rows: Sequence[str]) -> list[_Bar]:
    bars, top = [], 100.0
    for factor in factors:
        places = [rows.index(part) for part in factor.parts if part in rows]
        bottom = top * factor.value.value
        if places and factor.value.basis != "baseline":
            middle = sum(places) / len(places)
            bars.append(_Bar(factor=factor, top=top, bottom=bottom, middle=middle))
        top = bottom
    return bars


def _interval(axes: Axes, estimate: Estimate, place: float, *, scale: float) -> None:
    if estimate.interval is not None:
        sides = [[side * scale] for side in estimate.sides]
        axes.errorbar(
            estimate.value * scale, place, xerr=sides, color=INK, elinewidth=1.0, capsize=2.5
        )


def _furthest(explanation: Explanation) -> float:
    """The largest efficiency that any interval reaches, in percent."""
    top, ends = 100.0, [100.0]
    for estimate in (factor.value for factor in explanation.factors.factors):
        ends += [top * end for end in estimate.ends]
        top *= estimate.value
    reached = explanation.factors.efficiency
    return max(ends if reached is None else [*ends, *(100 * e for e in reached.interval or ())])


def _estimates(explanations: Sequence[Explanation]) -> list[Estimate]:
    return [
        factor.value
        for explanation in explanations
        for factor in explanation.factors.factors
        if factor.value.basis != "baseline"
    ]

"""Efficiency from linear scaling down to what was reached, a bar for every factor that costs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from dpbench.analysis.estimate import Estimate
from dpbench.analysis.explanation import Explanation, explain
from dpbench.analysis.factors import PARTS, Factor
from dpbench.report.charts.source import ChartSource, NothingToDraw
from dpbench.report.charts.style import BLUE, GREEN, GREY, VERMILION, finish, panels
from dpbench.report.numbers import plus_minus

WATERFALL = "efficiency_waterfall"
MOST_PANELS = 12
WIDEST = 150
"""Percent; an interval that reaches further is cut off."""
HEIGHT = 0.6
NOISE = "#D9D9D9"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Bar:
    """One factor: from the efficiency above it down to the one below it, in percent."""

    factor: Factor
    top: float
    bottom: float
    middle: float
    """Its place down the panel: the mean of its parts' rows."""

    @property
    def color(self) -> str:
        if not (self.factor.is_loss or self.is_gain):
            return NOISE
        return GREEN if self.is_gain else VERMILION

    @property
    def is_gain(self) -> bool:
        return self.factor.value.interval is not None and self.factor.value.interval[0] > 1


def _efficiency(explanation: Explanation) -> float:
    reached = explanation.factors.efficiency
    return math.inf if reached is None else reached.value


def efficiency_waterfall(source: ChartSource) -> Figure:
    """One panel a configuration of more than one replica, the largest groups first."""
    found = [
        explanation
        for explanation in explain(source.records, source.rows)
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
        axis.set_xlabel("efficiency (% of linear scaling of `single`)")
    figure.legend(handles=_legend(), loc="outside right upper")
    return finish(
        figure,
        title="Where the efficiency goes",
        caption=source.caption(_estimates(shown), [*remarks, "numbers beside bars: factors"]),
    )


def _rows(explanations: Sequence[Explanation]) -> tuple[str, ...]:
    """What stands beside the bars; granularity only in strong scaling, else it costs nothing."""
    strong = any(explanation.trial.scaling == "strong" for explanation in explanations)
    return ("linear", *(PARTS if strong else PARTS[1:]), "reached")


def _draw(axes: Axes, explanation: Explanation, rows: Sequence[str]) -> None:
    reached = explanation.factors.efficiency
    assert reached is not None
    axes.barh(0, 100, color=GREY, height=HEIGHT)
    for bar in _bars(explanation.factors.factors, rows):
        height = HEIGHT + len(set(bar.factor.parts) & set(rows)) - 1
        axes.barh(bar.middle, bar.bottom - bar.top, left=bar.top, color=bar.color, height=height)
        _interval(axes, bar.factor.value, bar.middle, scale=bar.top)
        number = plus_minus(bar.factor.value, two_after_one=False, plain_decimals=2)
        _beside(axes, bar.middle, number)
    last = len(rows) - 1
    axes.barh(last, 100 * reached.value, color=BLUE, height=HEIGHT)
    _interval(axes, reached, last, scale=100)
    _beside(axes, last, f"{plus_minus(reached, scale=100, plain_decimals=0)} %")
    axes.set_yticks(range(len(rows)), rows)
    axes.set_ylim(last + 0.6, -0.6)
    axes.grid(False, axis="y")
    axes.set_title(explanation.row.label)


def _beside(axes: Axes, place: float, text: str) -> None:
    """A number at the right of the panel, where no bar can hide it."""
    axes.text(1.02, place, text, transform=axes.get_yaxis_transform(), va="center", fontsize=7.5)


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
        low, high = estimate.interval
        ends = ([(estimate.value - low) * scale], [(high - estimate.value) * scale])
        axes.errorbar(
            estimate.value * scale, place, xerr=ends, color="black", elinewidth=1.0, capsize=2.5
        )


def _furthest(explanation: Explanation) -> float:
    """The largest efficiency that any interval reaches, in percent."""
    top, ends = 100.0, [100.0]
    for estimate in (factor.value for factor in explanation.factors.factors):
        ends += [top * end for end in estimate.interval or (estimate.value,)]
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


def _legend() -> list[Patch]:
    meanings = (
        (VERMILION, "loss"),
        (GREEN, "gain"),
        (NOISE, "not beyond the noise"),
        (BLUE, "reached"),
    )
    return [Patch(color=color, label=label) for color, label in meanings]

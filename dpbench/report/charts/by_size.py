"""Throughput, speedup and efficiency against group size, one panel per batch size."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from dpbench.analysis.configuration import ConfigurationSummary
from dpbench.analysis.estimate import Estimate
from dpbench.report.charts import curves
from dpbench.report.charts.curves import Panel, label_lines
from dpbench.report.charts.kinds import CHARTS
from dpbench.report.charts.source import ChartSource, NothingToDraw
from dpbench.report.charts.style import MUTED, finish, panels, scaled_axis
from dpbench.specs.traits import SINGLE

FARTHEST_LINEAR = 2.0
"""Times the highest value: as much of linear scaling is shown on a linear axis."""
LINEAR_OF_ITSELF = "linear: n times the same at group size 1"
"""The remark of curves that are each compared with their own first point."""
Point = tuple[float, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Against:
    """The quantity drawn against the group size."""

    title: str
    quantity: str
    y: Callable[[ConfigurationSummary], Estimate | None]
    linear: Callable[[Panel, int], float | None]
    """Value of linear scaling at a group size; None if unknown."""
    linear_name: Callable[[Panel], str] = lambda _: "linear scaling"
    remark: str | None = None
    """Starting point of linear scaling, if its name does not say it."""
    grows: bool = True
    """The values grow with the group, so that their axis is logarithmic too for large groups."""


def in_groups(source: ChartSource) -> list[ConfigurationSummary]:
    """Rows that run at several group sizes: all except `single`."""
    return [row for row in source.rows if row.implementation != SINGLE]


def by_group_size(
    source: ChartSource, rows: Sequence[ConfigurationSummary], against: Against
) -> Figure:
    """Lines with intervals, and in grey where linear scaling would be."""
    found, remarks = curves.make_panels(rows, against.y)
    values = curves.all_estimates(found)
    sizes = sorted({x for panel in found for curve in panel.curves for x in curve.xs})
    if len(sizes) < 2:
        raise NothingToDraw(f"no {against.quantity} at two group sizes or more")
    log = against.grows and sizes[-1] > curves.LINEAR_UP_TO
    alike = log or curves.are_alike(found)
    figure, axes = panels(len(found), share_y=alike)
    cut = False
    for axis, panel in zip(axes, found, strict=True):
        neighbours = found if alike else [panel]
        cut |= _panel(axis, panel, neighbours, sizes, against)
        labelled = not alike or curves.first_in_row(axis)
        scaled_axis(
            axis.yaxis,
            [_typical(found) if log else curves.highest_value(found)],
            values[0].unit,
            against.quantity if labelled else "",
        )
    if cut:
        remarks.append(curves.CUT_OFF)
    if against.remark is not None:
        remarks.append(against.remark)
    return finish(figure, title=against.title, caption=source.caption(values, remarks))


def _panel(
    axes: Axes, panel: Panel, neighbours: Sequence[Panel], sizes: Sequence[int], against: Against
) -> bool:
    """Draws one panel, whose y axis has room for its neighbours; tells whether bars are cut."""
    large = sizes[-1] > curves.LINEAR_UP_TO
    names = curves.draw_curves(axes, panel.curves, log=large)
    ideal: list[Point] = [(n, y) for n in sizes if (y := against.linear(panel, n)) is not None]
    cut = False
    if large and against.grows:
        _log_axis(axes)
    else:
        top = curves.upper_limit(neighbours, _room(neighbours, sizes[-1], against))
        axes.set_ylim(0, top)
        ideal = _until(top, ideal)
        cut = curves.are_cut([panel], top)
    if ideal:
        axes.plot(*zip(*ideal, strict=True), color=MUTED, linewidth=1.0, zorder=1)
        names.append((*ideal[-1], against.linear_name(panel), MUTED))
    label_lines(axes, names)
    curves.number_axis(axes, sizes, "group size (replicas)", log=large)
    axes.set_title(panel.title)
    return cut


def _typical(found: Sequence[Panel]) -> float:
    """The geometric middle of what a logarithmic axis shows."""
    values = [y.value for y in curves.all_estimates(found)]
    return math.sqrt(min(values) * max(values))


def _room(found: Sequence[Panel], largest: int, against: Against) -> float:
    """How much of linear scaling an axis shows."""
    ideal = max(against.linear(panel, largest) or 0.0 for panel in found)
    return min(ideal, FARTHEST_LINEAR * curves.highest_value(found)) if against.grows else ideal


def _until(top: float, line: Sequence[Point]) -> list[Point]:
    """The part of a rising line below `top`, up to where it gets there."""
    inside = [(x, y) for x, y in line if y <= top]
    if inside and len(inside) < len(line):
        (x, y), (further, higher) = inside[-1], line[len(inside)]
        inside.append((x + (further - x) * (top - y) / (higher - y), top))
    return inside


def _log_axis(axes: Axes) -> None:
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5)))
    axes.yaxis.set_minor_locator(NullLocator())


def throughput(source: ChartSource) -> Figure:
    """One panel a batch size; linear scaling starts at `single`, or at the fastest one replica."""
    return by_group_size(
        source,
        source.rows,
        Against(
            title=CHARTS["throughput"].title,
            quantity="throughput",
            y=lambda row: row.throughput,
            linear=_linear,
            linear_name=lambda panel: f"linear from {_start(_ones(panel))}",
        ),
    )


def _linear(panel: Panel, group_size: int) -> float | None:
    """n times one replica; None where nothing ran at group size 1."""
    ones = _ones(panel)
    return group_size * ones[_start(ones)] if ones else None


def _ones(panel: Panel) -> dict[str, float]:
    """Values at group size 1."""
    return {
        curve.label: estimate.value
        for curve in panel.curves
        for n, estimate in zip(curve.xs, curve.ys, strict=True)
        if n == 1
    }


def _start(ones: Mapping[str, float]) -> str:
    return SINGLE if SINGLE in ones else max(ones, key=ones.__getitem__)


def speedup(source: ChartSource) -> Figure:
    """One panel a batch size; each curve against itself at group size 1."""
    return by_group_size(
        source,
        in_groups(source),
        Against(
            title=CHARTS["speedup"].title,
            quantity="speedup",
            y=lambda row: row.speedup,
            remark=LINEAR_OF_ITSELF,
            linear=lambda _, group_size: float(group_size),
        ),
    )


def efficiency(source: ChartSource) -> Figure:
    """One panel a batch size; each curve against itself at group size 1."""
    return by_group_size(
        source,
        in_groups(source),
        Against(
            title=CHARTS["efficiency"].title,
            quantity="efficiency",
            y=lambda row: row.efficiency,
            remark=LINEAR_OF_ITSELF,
            linear=lambda _, __: 1.0,
            grows=False,
        ),
    )

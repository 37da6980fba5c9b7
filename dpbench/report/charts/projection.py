"""Throughput and efficiency against group size, as far as a projection goes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from dpbench import units
from dpbench.analysis.estimate import BAND_CONFIDENCE, Estimate
from dpbench.analysis.projection.series import ProjectedRow, Projection
from dpbench.messages import one_line
from dpbench.report.charts.source import ChartSource, NothingToDraw
from dpbench.report.charts.style import (
    MUTED,
    SPREAD,
    SeriesStyle,
    category_axis,
    draw_points,
    legend,
    panels,
    scaled_axis,
    series_of,
    series_styles,
)
from dpbench.report.numbers import quantity
from dpbench.report.projection import item_of

MOST_SERIES = 6


def projection(source: ChartSource) -> Figure:
    """Two panels: filled markers are measured, hollow ones predicted."""
    drawable = [one for one in source.projections if len(_rows(one)) > 1]
    if not drawable:
        raise NothingToDraw("a projection is drawn of two group sizes or more")
    largest = max(one.series.rows[0].batch_size or 0 for one in drawable)
    alike = [one for one in drawable if (one.series.rows[0].batch_size or 0) == largest]
    shown = alike[:MOST_SERIES]
    styles = series_styles([series_of(one.series.rows[0]) for one in shown])
    sizes = sorted({row.group_size for one in shown for row in _rows(one)})
    item = item_of(shown)
    figure, axes = panels(2)
    panel: tuple[tuple[str, str, Callable[[ProjectedRow], Estimate | None]], ...] = (
        ("throughput" if item else "speedup", f"{item}/s" if item else "", lambda r: r.throughput),
        ("efficiency", "of linear", lambda r: r.efficiency),
    )
    for axis, (name, unit, read) in zip(axes, panel, strict=True):
        for place, one in enumerate(shown):
            style = styles[series_of(one.series.rows[0])]
            shift = SPREAD * ((place + 0.5) / len(shown) - 0.5)
            points = [
                (sizes.index(row.group_size) + shift, row, value)
                for row in _rows(one)
                if (value := read(row)) is not None
            ]
            _draw(axis, points, style)
            axis.plot([], [], label=one_line(one.series.label), **style)
        category_axis(axis, [f"{size:,}" for size in sizes], "group size (replicas)")
        if name == "efficiency":
            axis.axhline(1, color=MUTED, linewidth=1.0, zorder=1)
            axis.set_ylim(bottom=0)
        else:
            axis.set_yscale("log")
            axis.yaxis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5)))
        scaled_axis(axis, unit, name)
    legend(figure)
    networks = dict.fromkeys(one_line(one.network) for one in shown if one.network)
    remarks = [f"hollow: predicted, with {units.percent(BAND_CONFIDENCE)} bands"]
    if networks:
        remarks.append(f"network: {', '.join(networks)}")
    if len(shown) < len(drawable):
        batch = f" with batch size {largest:,}" if len(alike) < len(drawable) else ""
        remarks.append(f"{len(shown)} of {len(drawable)} series{batch}")
    rows = [row for one in shown for row in _rows(one) if row.kind == "measured"]
    measured = [row.throughput for row in rows if row.throughput]
    return source.finish(figure, "projection", measured, remarks)


def _rows(one: Projection) -> list[ProjectedRow]:
    """The rows that have a point."""
    return [row for row in one.rows if row.throughput and row.efficiency]


def _draw(
    axes: Axes, points: Sequence[tuple[float, ProjectedRow, Estimate]], style: SeriesStyle
) -> None:
    """A line from point to point; where it was predicted, the line is dotted and markers hollow."""
    for (x, _, first), (next_x, row, second) in pairwise(points):
        line = style["linestyle"] if row.kind == "measured" else ":"
        axes.plot((x, next_x), (first.value, second.value), color=style["color"], linestyle=line)
    for x, row, value in points:
        draw_points(
            axes,
            [(x, value, f"×{row.group_size}, {row.kind}: {quantity(value)}")],
            color=style["color"],
            marker=style["marker"],
            markerfacecolor=style["color"] if row.kind == "measured" else "white",
            zorder=3,
        )

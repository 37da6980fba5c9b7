"""Throughput against group size, with the line that linear scaling would follow."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from dpbench.report.charts import curves
from dpbench.report.charts.source import ChartSource, NothingToDraw
from dpbench.report.charts.style import GREY, finish, panels, plain_number


def throughput_by_group_size(source: ChartSource) -> Figure:
    """One panel a batch size; the ideal starts at `single`, or at the fastest of group size 1."""
    found, remarks = curves.make_panels(
        source.rows,
        parameter=lambda row: row.batch_size,
        parameter_name="batch sizes",
        x=lambda row: row.group_size,
        y=lambda row: row.throughput,
    )
    sizes = sorted({x for panel in found for curve in panel.curves for x in curve.xs})
    if len(sizes) < 2:
        raise NothingToDraw("fewer than two group sizes have a throughput")
    log = sizes[-1] > curves.LINEAR_UP_TO
    unit = next(row.throughput.unit for row in source.rows if row.throughput)
    figure, axes = panels(len(found))
    for axis, panel in zip(axes, found, strict=True):
        _ideal(axis, panel, sizes)
        curves.draw(axis, panel.curves, log=log)
        curves.number_axis(axis, sizes, "group size (replicas)", log=log)
        if log:
            axis.set_yscale("log")
            axis.yaxis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5)))
            axis.yaxis.set_minor_locator(NullLocator())
        else:
            axis.set_ylim(bottom=0)
        axis.yaxis.set_major_formatter(FuncFormatter(plain_number))
        axis.set_title("" if panel.parameter is None else f"batch size {panel.parameter}")
    axes[0].set_ylabel(f"throughput ({unit})")
    ideal = Line2D([], [], color=GREY, linewidth=1.0, label="linear scaling")
    curves.legend(figure, found, extra=[ideal])
    return finish(
        figure,
        title="Throughput by group size",
        caption=source.caption(curves.estimates(found), remarks),
    )


def _ideal(axes: Axes, panel: curves.Panel, sizes: list[int]) -> None:
    """n times one replica; not drawn where nothing ran at group size 1."""
    ones = {
        curve.label: estimate.value
        for curve in panel.curves
        for x, estimate in zip(curve.xs, curve.ys, strict=True)
        if x == 1
    }
    if ones:
        one = ones.get("single", max(ones.values()))
        axes.plot(sizes, [one * n for n in sizes], color=GREY, linewidth=1.0, zorder=1)

"""Efficiency against group size: how much of linear scaling is reached."""

from __future__ import annotations

from matplotlib.figure import Figure

from dpbench.report.charts import curves
from dpbench.report.charts.source import ChartSource, NothingToDraw
from dpbench.report.charts.style import GREY, finish, panels


def efficiency_by_group_size(source: ChartSource) -> Figure:
    """One panel a batch size; each curve against itself at group size 1."""
    found, remarks = curves.make_panels(
        [row for row in source.rows if row.implementation != "single"],
        parameter=lambda row: row.batch_size,
        parameter_name="batch sizes",
        x=lambda row: row.group_size,
        y=lambda row: row.efficiency,
    )
    sizes = sorted({x for panel in found for curve in panel.curves for x in curve.xs})
    if len(sizes) < 2:
        raise NothingToDraw("fewer than two group sizes have an efficiency")
    log = sizes[-1] > curves.LINEAR_UP_TO
    figure, axes = panels(len(found), share_y=True)
    for axis, panel in zip(axes, found, strict=True):
        axis.axhline(100, color=GREY, linewidth=1.0, zorder=1)
        curves.draw(axis, panel.curves, scale=100, log=log)
        curves.number_axis(axis, sizes, "group size (replicas)", log=log)
        axis.set_title("" if panel.parameter is None else f"batch size {panel.parameter}")
    tallest = max(max(e.value, (e.interval or (0.0, e.value))[1]) for e in curves.estimates(found))
    axes[0].set_ylim(0, 100 * max(1.08, min(tallest * 1.03, 1.5)))
    if tallest > 1.5:
        remarks = [*remarks, "cut off at 150 %"]
    axes[0].set_ylabel("efficiency (% of linear scaling)")
    curves.legend(figure, found)
    return finish(
        figure,
        title="Efficiency by group size",
        caption=source.caption(curves.estimates(found), remarks),
    )

"""Throughput against batch size: where more work per step stops to help."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from dpbench.report.charts import curves
from dpbench.report.charts.source import ChartSource, NothingToDraw
from dpbench.report.charts.style import finish, panels, plain_number


def throughput_by_batch_size(source: ChartSource) -> Figure:
    """One panel a group size."""
    found, remarks = curves.make_panels(
        source.rows,
        parameter=lambda row: row.group_size,
        parameter_name="group sizes",
        x=lambda row: row.batch_size,
        y=lambda row: row.throughput,
    )
    sizes = sorted({x for panel in found for curve in panel.curves for x in curve.xs})
    if len(sizes) < 2:
        raise NothingToDraw("fewer than two batch sizes have a throughput")
    unit = next(row.throughput.unit for row in source.rows if row.throughput)
    strong = any(row.configuration and row.configuration.scaling == "strong" for row in source.rows)
    whose = "group" if strong else "replica"
    # With large groups a common axis would flatten the small ones into a line.
    common = max(panel.parameter or 1 for panel in found) <= curves.LINEAR_UP_TO
    figure, axes = panels(len(found), share_y=common)
    for axis, panel in zip(axes, found, strict=True):
        curves.draw(axis, panel.curves, log=True)
        curves.number_axis(axis, sizes, f"batch size (samples per {whose})", log=True)
        axis.yaxis.set_major_formatter(FuncFormatter(plain_number))
        axis.set_title(f"group size {panel.parameter}")
    for axis in axes:  # when all is drawn: a limit ends the automatic ones of a shared axis
        axis.set_ylim(bottom=0)
    axes[0].set_ylabel(f"throughput ({unit})")
    curves.legend(figure, found)
    return finish(
        figure,
        title="Throughput by batch size",
        caption=source.caption(curves.estimates(found), remarks),
    )

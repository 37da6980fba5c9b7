"""Throughput against batch size: where more work per step stops to help."""

from __future__ import annotations

from matplotlib.figure import Figure

from dpbench.report.charts import curves
from dpbench.report.charts.end_labels import label_lines
from dpbench.report.charts.source import ChartSource, NothingToDraw
from dpbench.report.charts.style import finish, panels, scaled_axis


def batch_size(source: ChartSource) -> Figure:
    """One panel a group size."""
    found, remarks = curves.make_panels(
        source.rows,
        parameter=lambda row: row.group_size,
        parameter_name="group size",
        x=lambda row: row.batch_size,
        x_name="batch size",
        y=lambda row: row.throughput,
    )
    values = curves.estimates(found)
    sizes = sorted({x for panel in found for curve in panel.curves for x in curve.xs})
    if len(sizes) < 2:
        raise NothingToDraw("no throughput at two batch sizes or more")
    strong = any(row.configuration and row.configuration.scaling == "strong" for row in source.rows)
    label = f"batch size (samples per {'group' if strong else 'replica'})"
    alike = curves.are_alike(found)
    figure, axes = panels(len(found), share_y=alike)
    cut = False
    for axis, panel in zip(axes, found, strict=True):
        label_lines(axis, curves.draw(axis, panel.curves, log=True))
        curves.number_axis(axis, sizes, label, log=True)
        neighbours = found if alike else [panel]
        top = curves.top(neighbours)
        axis.set_ylim(0, top)
        cut |= curves.are_cut([panel], top)
        quantity = "" if alike and not curves.first_in_row(axis) else "throughput"
        scaled_axis(axis.yaxis, [curves.highest_value(found)], values[0].unit, quantity)
        axis.set_title(panel.title)
    if cut:
        remarks.append(curves.CUT_OFF)
    return finish(figure, title="Throughput by batch size", caption=source.caption(values, remarks))

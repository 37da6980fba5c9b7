"""Bus bandwidth of collectives by message size."""

from __future__ import annotations

from matplotlib.figure import Figure

from dpbench import units
from dpbench.analysis.communication.timings import MeasuredCollective, bus_factor, measured
from dpbench.messages import one_line
from dpbench.records.collectives import Collective
from dpbench.report.charts.source import ChartSource, NothingToDraw, first_of
from dpbench.report.charts.style import (
    BACKEND_COLORS,
    MOST_PANELS,
    OTHER_COLORS,
    category_axis,
    draw_points,
    legend,
    panels,
    scaled_axis,
    series_styles,
)
from dpbench.report.numbers import gigabytes


def bandwidth(source: ChartSource) -> Figure:
    """One panel per collective and group size, one line per backend."""
    found = [
        one
        for one in measured(source.collectives)
        if len(one.sizes) > 1 and bus_factor(one.spec.collective, one.spec.group_size) > 0
    ]
    if not found:
        raise NothingToDraw(
            "no collective was measured at two sizes or more; dpbench comm measures them"
        )
    groups: dict[tuple[Collective, int], list[MeasuredCollective]] = {}
    for one in found:
        groups.setdefault((one.spec.collective, one.spec.group_size), []).append(one)
    shown = list(groups.items())[:MOST_PANELS]
    figure, axes = panels(len(shown), share_y=True)
    styles = series_styles([("", "", one.spec.backend) for one in found if one.spec.backend])
    for axis, ((collective, group_size), group) in zip(axes, shown, strict=True):
        sizes = sorted({size.nbytes for one in group for size in one.sizes})
        for one in group:
            backend = one_line(one.spec.backend)
            style = styles["", "", one.spec.backend]
            points = [
                (
                    float(sizes.index(size.nbytes)),
                    size.bus_bandwidth,
                    f"{backend}, {units.bytes_exact(size.nbytes)}: "
                    f"{gigabytes(size.bus_bandwidth)} GB/s",
                )
                for size in one.sizes
            ]
            color = BACKEND_COLORS.get(backend, OTHER_COLORS[0])
            draw_points(axis, points, label=backend, **{**style, "color": color})
        axis.set_yscale("log")
        axis.set_title(f"{collective} ×{group_size}")
        names = [units.bytes_exact(size) for size in sizes]
        category_axis(axis, names, "message size")
        scaled_axis(axis, "B/s", "bus bandwidth")
    legend(figure)
    remarks = first_of(len(shown), len(groups), "panels")
    values = [size.bus_bandwidth for one in found for size in one.sizes]
    return source.finish(figure, "bandwidth", values, remarks)

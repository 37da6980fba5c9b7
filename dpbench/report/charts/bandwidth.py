"""Bus bandwidth of collectives by message size."""

from __future__ import annotations

from dpbench import units
from dpbench.analysis.collectives import MeasuredCollective, bus_factor, measured
from dpbench.analysis.subject import Subject
from dpbench.messages import one_line
from dpbench.report.charts.kinds import NothingToDraw
from dpbench.report.charts.style import (
    BACKEND_COLORS,
    OTHER_COLORS,
    Drawn,
    category_axis,
    draw_points,
    panels,
    scaled_axis,
    series_styles,
)
from dpbench.report.numbers import gigabytes


def bandwidth(subject: Subject) -> Drawn:
    """One panel per collective and group size, one line per backend."""
    groups: dict[str, list[MeasuredCollective]] = {}
    for one in measured(subject.collectives.records if subject.collectives else ()):
        spec = one.spec
        if len(one.sizes) > 1 and bus_factor(spec.collective, spec.group_size) > 0:
            groups.setdefault(f"{spec.collective} ×{spec.group_size}", []).append(one)
    if not groups:
        raise NothingToDraw(
            "no collective was measured at two sizes or more; dpbench comm measures them"
        )
    figure, shown, remarks = panels([*groups.items()], "panels", share_y=True)
    found = [one for group in groups.values() for one in group]
    styles = series_styles([("", "", one.spec.backend) for one in found])
    for axis, (title, group) in shown:
        sizes = sorted({size.nbytes for one in group for size in one.sizes})
        names = [units.bytes_exact(size) for size in sizes]
        for one in group:
            backend = one_line(one.spec.backend)
            points = []
            for size in one.sizes:
                place = sizes.index(size.nbytes)
                speed = f"{gigabytes(size.bus_bytes_per_second)} GB/s"
                points.append(
                    (place, size.bus_bytes_per_second, f"{backend}, {names[place]}: {speed}")
                )
            color = BACKEND_COLORS.get(backend, OTHER_COLORS[0])
            style = {**styles["", "", one.spec.backend], "color": color}
            draw_points(axis, points, label=backend, **style)
        axis.set_yscale("log")
        axis.set_title(title)
        category_axis(axis, names, "message size")
        scaled_axis(axis, "B/s", "bus bandwidth")
    return figure, [size.bus_bytes_per_second for one in found for size in one.sizes], remarks

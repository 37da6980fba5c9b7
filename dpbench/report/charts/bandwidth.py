"""Bus bandwidth of collectives by message size."""

from __future__ import annotations

from matplotlib.ticker import EngFormatter, NullLocator

from dpbench import units
from dpbench.analysis.analyze import Analysis
from dpbench.analysis.collectives import collective_rows
from dpbench.analysis.estimate import Estimate
from dpbench.messages import one_line
from dpbench.report.charts.kinds import NothingToDraw
from dpbench.report.charts.style import (
    BACKEND_COLORS,
    OTHER_COLORS,
    Drawn,
    backend_marks,
    category_axis,
    draw_points,
    panels,
)
from dpbench.specs.collective import CollectiveSpec


def bandwidth(analysis: Analysis) -> Drawn:
    """One panel per collective and group size, one line per backend."""
    lines: dict[CollectiveSpec, dict[int, Estimate]] = {}
    for row in collective_rows(analysis.collectives.records if analysis.collectives else ()):
        if row.nbytes is not None and row.bus_bytes_per_second is not None:
            lines.setdefault(row.spec, {})[row.nbytes] = row.bus_bytes_per_second
    groups: dict[str, list[CollectiveSpec]] = {}
    for spec, speeds in lines.items():
        if len(speeds) > 1:
            groups.setdefault(f"{spec.collective} ×{spec.group_size}", []).append(spec)
    if not groups:
        raise NothingToDraw(
            "no collective was measured at two sizes or more; dpbench comm measures them"
        )
    figure, shown, remarks = panels([*groups.items()], "panels")
    drawn = [spec for group in groups.values() for spec in group]
    marks = backend_marks([spec.backend for spec in drawn])
    for axis, (title, group) in shown:
        sizes = sorted({size for spec in group for size in lines[spec]})
        names = [units.bytes_binary(size) for size in sizes]
        for spec in group:
            backend = one_line(spec.backend)
            points = [(sizes.index(size), speed) for size, speed in lines[spec].items()]
            color = BACKEND_COLORS.get(backend, OTHER_COLORS[0])
            draw_points(axis, points, label=backend, color=color, **marks[spec.backend])
        axis.set_yscale("log")
        axis.yaxis.set_major_formatter(EngFormatter(unit="B/s"))
        axis.yaxis.set_minor_locator(NullLocator())
        axis.set_ylabel("bus bandwidth")
        axis.set_title(title)
        category_axis(axis, names, "message size")
    return Drawn(figure, [speed for spec in drawn for speed in lines[spec].values()], remarks)

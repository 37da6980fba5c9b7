"""Bus bandwidth of collectives by message size, beside that of plain copies."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from dpbench import units
from dpbench.analysis.communication.bandwidth import bus_factor
from dpbench.analysis.communication.timings import MeasuredCollective, measured
from dpbench.messages import one_line
from dpbench.records.collectives import Collective, CollectiveRecord
from dpbench.records.environment import environment_line
from dpbench.report.charts.kinds import CHARTS
from dpbench.report.charts.source import ChartSource, NothingToDraw, interval_words
from dpbench.report.charts.style import (
    BACKEND_COLOURS,
    MOST_PANELS,
    MUTED,
    OTHER_COLOURS,
    add_tip,
    category_axis,
    finish,
    legend,
    panels,
    scaled_axis,
    series_styles,
)
from dpbench.report.numbers import gigabytes


def bandwidth(records: Sequence[CollectiveRecord], source: ChartSource) -> Figure:
    """One panel per collective and group size, one line per backend."""
    found = [
        one
        for one in measured(records)
        if len(one.sizes) > 1 and bus_factor(one.spec.collective, one.spec.group_size) > 0
    ]
    if not found:
        raise NothingToDraw("no collective was measured at two sizes or more")
    groups: dict[tuple[Collective, int], list[MeasuredCollective]] = {}
    for one in found:
        groups.setdefault((one.spec.collective, one.spec.group_size), []).append(one)
    shown = list(groups.items())[:MOST_PANELS]
    figure, axes = panels(len(shown), share_y=True)
    backends = dict.fromkeys(one.spec.backend for one in found)
    styles = series_styles([("", backend) for backend in backends])
    for axis, ((collective, group_size), group) in zip(axes, shown, strict=True):
        sizes = sorted({size.nbytes for one in group for size in one.sizes})
        copies: dict[int, float] = {}
        for one in group:
            style = styles["", one.spec.backend]
            axis.errorbar(
                [sizes.index(size.nbytes) for size in one.sizes],
                [size.bus_bandwidth.value for size in one.sizes],
                yerr=[[size.bus_bandwidth.sides[k] for size in one.sizes] for k in (0, 1)],
                label=one_line(one.spec.backend),
                elinewidth=1.0,
                color=BACKEND_COLOURS.get(one.spec.backend, OTHER_COLOURS[0]),
                linestyle=style.linestyle,
                marker=style.marker,
            )
            for size in one.sizes:
                value = size.bus_bandwidth
                words = f"{one.spec.backend}, {units.bytes_exact(size.nbytes)}: "
                words += f"{gigabytes(value)} GB/s"
                add_tip(axis, sizes.index(size.nbytes), value.value, one_line(words))
                if size.copy_bandwidth is not None:
                    place = sizes.index(size.nbytes)
                    copies[place] = max(size.copy_bandwidth.value, copies.get(place, 0.0))
        if copies:
            places = sorted(copies)
            values = [copies[place] for place in places]
            axis.plot(places, values, color=MUTED, linewidth=1.0, zorder=1, label="copies")
        axis.set_yscale("log")
        axis.set_title(f"{collective} ×{group_size}")
        names = [units.bytes_exact(size) for size in sizes]
        category_axis(axis, names, "message size", most=5 if len(shown) > 1 else 8)
        scaled_axis(axis, "B/s", "bus bandwidth" if axis is axes[0] else "")
    legend(figure)
    used = {identifier for one in found for identifier in one.environment_ids}
    parts = [
        *interval_words([size.bus_bandwidth for one in found for size in one.sizes]),
        "copies: as many bytes from one tensor to another, by all ranks at once",
        *([f"first {len(shown)} of {len(groups)} panels"] if len(shown) < len(groups) else []),
        environment_line(source.environments, used),
        source.name,
    ]
    return finish(figure, title=CHARTS["bandwidth"].title, caption=" · ".join(parts))

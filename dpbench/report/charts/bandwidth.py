"""Bandwidth of collectives against the size of the message, beside that of copies."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullLocator

from dpbench import units
from dpbench.analysis.communication.timings import MeasuredCollective, measured
from dpbench.collectives import Collective, CollectiveRecord
from dpbench.report.charts import curves
from dpbench.report.charts.curves import Curve, Panel
from dpbench.report.charts.files import Chart
from dpbench.report.charts.source import (
    ChartSource,
    NothingToDraw,
    environment_line,
    interval_words,
)
from dpbench.report.charts.style import GREY, finish, panels, series_styles

BANDWIDTH = "bandwidth_by_size"
MOST_PANELS = 9


def bandwidth_chart(records: Sequence[CollectiveRecord]) -> Chart:
    """The chart of these records, to be drawn with `files.write_charts`."""
    return partial(bandwidth_by_size, records)


def bandwidth_by_size(records: Sequence[CollectiveRecord], source: ChartSource) -> Figure:
    """One panel a collective and group size, a line a backend; of `source` place and name."""
    found = [one for one in measured(records) if len(one.sizes) > 1]
    if not found:
        raise NothingToDraw("no collective was measured at two sizes or more")
    groups: dict[tuple[Collective, int], dict[str, MeasuredCollective]] = {}
    for one in found:
        key = (one.spec.collective, one.spec.group_size)
        groups.setdefault(key, {})[one.spec.backend] = one
    shown = dict(list(groups.items())[:MOST_PANELS])
    drawn = {key: _curves(list(group.values()), found) for key, group in shown.items()}
    figure, axes = panels(len(shown), share_y=True)
    for axis, (key, lines) in zip(axes, drawn.items(), strict=True):
        copies = _copies(list(shown[key].values()))
        axis.plot(*copies, color=GREY, linewidth=1.0, zorder=1)
        curves.draw(axis, lines, log=True)
        _axes(axis, lines)
        axis.set_title(f"{key[0]} ×{key[1]}")
    axes[0].set_ylabel("busbw")
    pictured = [Panel(parameter=None, curves=lines) for lines in drawn.values()]
    grey = Line2D([], [], color=GREY, linewidth=1.0, label="copies")
    curves.legend(figure, pictured, extra=[grey])
    left_out = len(groups) - len(shown)
    remarks = [f"first {MOST_PANELS} of {len(groups)} panels"] if left_out else []
    used = {identifier for one in found for identifier in one.environment_ids}
    parts = [
        *interval_words(curves.estimates(pictured)),
        *remarks,
        "grey: copies of as many bytes from one tensor to another by all ranks at once",
        environment_line(source.environments, used),
        source.name,
    ]
    return finish(figure, title="Bandwidth by message size", caption=" · ".join(parts))


def _curves(
    group: Sequence[MeasuredCollective], every: Sequence[MeasuredCollective]
) -> tuple[Curve, ...]:
    """A backend looks the same in all panels."""
    backends = dict.fromkeys(one.spec.backend for one in every)
    styles = series_styles([("collective", backend) for backend in backends])
    return tuple(
        Curve(
            label=one.spec.backend,
            style=styles[f"collective {one.spec.backend}"],
            xs=tuple(size.nbytes for size in one.sizes),
            ys=tuple(size.bus_bandwidth for size in one.sizes),
        )
        for one in group
    )


def _copies(group: Sequence[MeasuredCollective]) -> tuple[list[int], list[float]]:
    """Sizes and bytes per second; of several backends, which copy alike, the fastest."""
    best: dict[int, float] = {}
    for size in (size for one in group for size in one.sizes):
        if size.copy_bandwidth is not None:
            best[size.nbytes] = max(size.copy_bandwidth.value, best.get(size.nbytes, 0.0))
    return sorted(best), [best[nbytes] for nbytes in sorted(best)]


def _axes(axes: Axes, lines: Sequence[Curve]) -> None:
    sizes = [x for line in lines for x in line.xs]
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(curves.chosen(sizes, 5))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: units.bytes_binary(value)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(_rate))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("message size")


def _rate(bytes_per_second: float, _: object) -> str:
    """Writes "10 GB/s", "100 kB/s": powers of ten, as the axis has them."""
    for size, unit in ((1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s")):
        if bytes_per_second >= size:
            return f"{bytes_per_second / size:g} {unit}"
    return f"{bytes_per_second:g} B/s"

"""Throughput and efficiency against group size, as far as a projection goes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from dpbench.analysis.estimate import Estimate
from dpbench.analysis.projection.project import ProjectedRow
from dpbench.analysis.provenance import KINDS, Kind
from dpbench.report.charts.curves import chosen
from dpbench.report.charts.source import ChartSource, NothingToDraw
from dpbench.report.charts.style import GREY, PALETTE, finish, panels, plain_number
from dpbench.report.projection import Projection

PROJECTION = "projection_by_group_size"
MOST_SERIES = 6
BAND_OPACITY = 0.15
LINES: dict[Kind, Literal["-", "--", ":"]] = {
    "measured": "-",
    "interpolated": "-",
    "extrapolated": "--",
    "projected": ":",
}
"""Of the stretch that leads to a group size of the kind."""
APART, POINTS_PER_PERCENT = 5.0, 2.4
"""How far apart names stand, in percent of the axis, and how long a percent is."""
Value = Callable[[ProjectedRow], Estimate | None]


def projection_by_group_size(projections: Sequence[Projection], source: ChartSource) -> Figure:
    """Two panels: full markers with bars are measured, hollow ones in a band simulated."""
    shown = [one for one in projections if len(_rows(one)) > 1][:MOST_SERIES]
    if not shown:
        raise NothingToDraw("fewer than two group sizes have a number")
    remarks = []
    if len(shown) < len(projections):
        remarks.append(f"{len(shown)} of {len(projections)} series")
    figure, (speed, efficiency) = panels(2)
    figure.set_size_inches(10.2, 4.6)
    sizes = sorted({row.group_size for one in shown for row in _rows(one)})
    _ideal(speed, shown, sizes)
    efficiency.axhline(100, color=GREY, linewidth=1.0, zorder=1)
    for one, colour in zip(shown, PALETTE, strict=False):
        _draw(speed, one, lambda row: row.throughput, colour, scale=1.0)
        _draw(efficiency, one, lambda row: row.efficiency, colour, scale=100.0)
    for axis in (speed, efficiency):
        axis.set_xscale("log")
        axis.set_xticks(chosen(sizes, 9))
        axis.xaxis.set_major_formatter(FuncFormatter(plain_number))
        axis.xaxis.set_minor_locator(NullLocator())
        axis.set_xlabel("group size (replicas)")
    speed.set_yscale("log")
    speed.yaxis.set_major_locator(
        LogLocator(base=10, subs=(1, 2, 5) if _is_narrow(shown) else (1,))
    )
    speed.yaxis.set_minor_locator(NullLocator())
    speed.yaxis.set_major_formatter(FuncFormatter(plain_number))
    speed.set_ylabel(f"throughput ({shown[0].item}/s)")
    efficiency.set_ylim(bottom=0)
    efficiency.set_ylabel("efficiency (% of linear scaling)")
    _name_lines(efficiency, shown)
    figure.legend(handles=_legend(shown), loc="outside right upper", handlelength=3.2)
    networks = ", ".join(dict.fromkeys(one.network for one in shown))
    return finish(
        figure,
        title="Throughput and efficiency, as measured and as simulated beyond",
        caption=source.caption(
            _measured_values(shown), [*remarks, f"bands: 90 % of simulated steps, on {networks}"]
        ),
    )


def _rows(projection: Projection) -> list[ProjectedRow]:
    return [row for row in projection.rows if row.throughput and row.efficiency]


def _is_narrow(shown: Sequence[Projection]) -> bool:
    """Whether powers of ten alone would leave the axis nearly without numbers."""
    values = [row.throughput.value for one in shown for row in _rows(one) if row.throughput]
    return max(values) < 100 * min(values)


def _ideal(axes: Axes, shown: Sequence[Projection], sizes: Sequence[int]) -> None:
    """n times one replica, of the fastest."""
    ones = [row.throughput.value for one in shown for row in _rows(one)[:1] if row.throughput]
    firsts = [_rows(one)[0].group_size for one in shown]
    if set(firsts) == {1}:
        axes.plot(sizes, [max(ones) * n for n in sizes], color=GREY, linewidth=1.0, zorder=1)


def _draw(axes: Axes, one: Projection, value: Value, colour: str, *, scale: float) -> None:
    """A line from point to point in the style of its end; bars where it was measured, and a band
    from the last such point on."""
    points = [(row, estimate) for row in _rows(one) if (estimate := value(row)) is not None]
    xs = [row.group_size for row, _ in points]
    ys = [estimate.value * scale for _, estimate in points]
    ends = [estimate.interval or (estimate.value,) * 2 for _, estimate in points]
    low, high = ([end * scale for end in side] for side in zip(*ends, strict=True))
    for place, (row, _) in enumerate(points):
        if place:
            stretch = slice(place - 1, place + 1)
            axes.plot(xs[stretch], ys[stretch], color=colour, linestyle=LINES[row.kind])
            if row.kind != "measured":
                band = (xs[stretch], low[stretch], high[stretch])
                axes.fill_between(*band, color=colour, alpha=BAND_OPACITY, linewidth=0)
        measured = row.kind == "measured"
        axes.errorbar(
            xs[place],
            ys[place],
            yerr=[[ys[place] - low[place]], [high[place] - ys[place]]] if measured else None,
            color=colour,
            marker="o",
            markerfacecolor=colour if measured else "white",
            elinewidth=1.0,
            capsize=2.5,
            zorder=3,
        )


def _name_lines(axes: Axes, shown: Sequence[Projection]) -> None:
    """The series at the end of its line, moved apart where ends are close."""
    heights = []
    for one, colour in zip(shown, PALETTE, strict=False):
        last = _rows(one)[-1]
        if last.efficiency is not None:
            heights.append((100 * last.efficiency.value, last.group_size, one.label, colour))
    below = float("-inf")
    for height, size, label, colour in sorted(heights):
        below = max(height, below + APART)
        axes.annotate(
            label,
            (size, height),
            xytext=(6, (below - height) * POINTS_PER_PERCENT),
            textcoords="offset points",
            color=colour,
            fontsize=7.5,
            va="center",
            annotation_clip=False,
        )


def _legend(shown: Sequence[Projection]) -> list[Line2D]:
    """What markers and lines mean; the series are named at their lines."""
    kinds = {row.kind for one in shown for row in _rows(one)}
    handles = [
        Line2D(
            [],
            [],
            color="black",
            linestyle=LINES[kind],
            marker="o",
            markerfacecolor="black" if kind == "measured" else "white",
            label=kind,
        )
        for kind in KINDS
        if kind in kinds
    ]
    return [*handles, Line2D([], [], color=GREY, linewidth=1.0, label="linear scaling")]


def _measured_values(shown: Sequence[Projection]) -> list[Estimate]:
    return [
        row.throughput
        for one in shown
        for row in _rows(one)
        if row.kind == "measured" and row.throughput is not None
    ]

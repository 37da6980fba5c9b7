"""Throughput and efficiency against group size, as far as a projection goes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from dpbench import units
from dpbench.analysis.estimate import Estimate
from dpbench.analysis.projection.row import CONFIDENCE, ProjectedRow, Projection
from dpbench.analysis.provenance import KINDS, Provenance
from dpbench.messages import one_line
from dpbench.report.charts.curves import chosen_sizes, label_lines
from dpbench.report.charts.source import ChartSource, NothingToDraw
from dpbench.report.charts.style import (
    BAND_OPACITY,
    INK,
    MUTED,
    PALETTE,
    finish,
    panels,
    plain_number,
)
from dpbench.report.projection import item_of

MOST_TICKS = 9


class _Look(NamedTuple):
    """The marker of a group size, and the line that leads to it."""

    marker: str
    filled: bool
    line: Literal["-", "--", ":"]


LOOKS: dict[Provenance, _Look] = {
    "measured": _Look("o", True, "-"),
    "interpolated": _Look("o", False, "-"),
    "extrapolated": _Look("s", False, "--"),
    "projected": _Look("D", False, ":"),
}


def projection(projections: Sequence[Projection], source: ChartSource) -> Figure:
    """Two panels: full markers with bars are measured, hollow ones with a band predicted."""
    drawable = [one for one in projections if len(_rows(one)) > 1]
    shown = drawable[: len(PALETTE)]
    if not shown:
        raise NothingToDraw("fewer than two group sizes have a number")
    figure, (speed, efficiency) = panels(2)
    figure.set_size_inches(11.2, 4.8)
    sizes = sorted({row.group_size for one in shown for row in _rows(one)})
    efficiency.axhline(100, color=MUTED, linewidth=1.0, zorder=1)
    for axes, scale, estimates in (
        (speed, 1.0, [[row.throughput for row in _rows(one)] for one in shown]),
        (efficiency, 100.0, [[row.efficiency for row in _rows(one)] for one in shown]),
    ):
        ends = []
        for one, values, colour in zip(shown, estimates, PALETTE, strict=False):
            drawn = [value.scaled(scale, unit="") for value in values if value is not None]
            _draw(axes, _rows(one), drawn, colour)
            ends.append((_rows(one)[-1].group_size, drawn[-1].value, one_line(one.label), colour))
        label_lines(axes, ends)
        axes.set_xscale("log")
        axes.set_xticks(chosen_sizes(sizes, MOST_TICKS))
        axes.xaxis.set_major_formatter(FuncFormatter(plain_number))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlabel("group size (replicas)")
    speed.set_yscale("log")
    speed.yaxis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5)))
    speed.yaxis.set_minor_locator(NullLocator())
    speed.yaxis.set_major_formatter(FuncFormatter(plain_number))
    item = item_of(shown)
    speed.set_ylabel(f"throughput ({item}/s)" if item else "speedup")
    efficiency.set_ylim(bottom=0)
    efficiency.set_ylabel("efficiency (% of linear scaling)")
    speed.legend(handles=_key(shown), loc="upper left", handlelength=3.0)
    networks = dict.fromkeys(one_line(one.network) for one in shown if one.network)
    left_out = [f"{len(shown)} of {len(drawable)} series"] if len(shown) < len(drawable) else []
    measured = [
        row.throughput
        for one in shown
        for row in _rows(one)
        if row.kind == "measured" and row.throughput
    ]
    return finish(
        figure,
        title="Throughput and efficiency beyond what was measured"
        + (f", on {', '.join(networks)}" if networks else ""),
        caption=source.caption(
            measured, [*left_out, f"bands: {units.percent(CONFIDENCE)} of the prediction"]
        ),
    )


def _rows(one: Projection) -> list[ProjectedRow]:
    """The rows that have a point: those without a change."""
    return [row for row in one.rows if row.throughput and row.efficiency and row.change is None]


def _draw(
    axes: Axes, rows: Sequence[ProjectedRow], values: Sequence[Estimate], colour: str
) -> None:
    """A line from point to point in the style of its end, with a band where it was predicted."""
    points = list(zip(rows, values, strict=True))
    for (before, first), (row, second) in pairwise(points):
        xs = (before.group_size, row.group_size)
        line = LOOKS[row.kind].line
        axes.plot(xs, (first.value, second.value), color=colour, linestyle=line)
        if row.kind != "measured":
            (low, high), (next_low, next_high) = first.ends, second.ends
            axes.fill_between(
                xs, (low, next_low), (high, next_high), color=colour, alpha=BAND_OPACITY, lw=0
            )
    for row, value in points:
        look, (below, above) = LOOKS[row.kind], value.sides
        axes.errorbar(
            row.group_size,
            value.value,
            yerr=[[below], [above]] if row.kind == "measured" else None,
            color=colour,
            marker=look.marker,
            markerfacecolor=colour if look.filled else "white",
            elinewidth=1.0,
            capsize=2.5,
            zorder=3,
        )


def _key(shown: Sequence[Projection]) -> list[Line2D]:
    """Legend of the markers and lines of each kind; the series are named at their lines."""
    kinds = {row.kind for one in shown for row in _rows(one)}
    return [
        Line2D(
            [],
            [],
            color=INK,
            linestyle=LOOKS[kind].line,
            marker=LOOKS[kind].marker,
            markerfacecolor=INK if LOOKS[kind].filled else "white",
            label=kind,
        )
        for kind in KINDS
        if kind in kinds
    ]

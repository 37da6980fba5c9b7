"""Throughput and efficiency against group size, as far as a projection goes."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from dpbench import units
from dpbench.analysis.estimate import Estimate
from dpbench.analysis.laws.band import CONFIDENCE
from dpbench.analysis.projection.project import ProjectedRow
from dpbench.analysis.provenance import KINDS, Provenance
from dpbench.messages import one_line
from dpbench.report.charts.curves import chosen_sizes, label_lines
from dpbench.report.charts.source import ChartSource, NothingToDraw
from dpbench.report.charts.style import (
    INK,
    MUTED,
    PALETTE,
    finish,
    panels,
    plain_number,
)
from dpbench.report.prediction.projection import Projection, item_of

MOST_SERIES = len(PALETTE)
BAND_OPACITY = 0.15
LONGEST_NAME = 60
Value = Callable[[ProjectedRow], Estimate | None]


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


def file_name(network: str | None) -> str:
    """File name of a chart; for given networks it contains the network's name.

    None: the network as measured. Of a name only letters, digits and hyphens are taken.
    """
    if network is None:
        return "projection"
    plain = re.sub(r"[^a-z0-9]+", "-", network.lower()).strip("-")[:LONGEST_NAME]
    return f"projection-{plain or 'given'}"


def projection(projections: Sequence[Projection], source: ChartSource) -> Figure:
    """Two panels: full markers with bars are measured, hollow ones in a band simulated."""
    shown = [one for one in projections if len(_rows(one)) > 1][:MOST_SERIES]
    if not shown:
        raise NothingToDraw("fewer than two group sizes have a number")
    figure, (speed, efficiency) = panels(2)
    figure.set_size_inches(11.2, 4.8)
    sizes = sorted({row.group_size for one in shown for row in _rows(one)})
    _ideal(speed, shown, sizes)
    efficiency.axhline(100, color=MUTED, linewidth=1.0, zorder=1)
    for one, colour in zip(shown, PALETTE[: len(shown)], strict=True):
        _draw(speed, one, lambda row: row.throughput, colour, scale=1.0)
        _draw(efficiency, one, lambda row: row.efficiency, colour, scale=100.0)
    for axis in (speed, efficiency):
        axis.set_xscale("log")
        axis.set_xticks(chosen_sizes(sizes, 9))
        axis.xaxis.set_major_formatter(FuncFormatter(plain_number))
        axis.xaxis.set_minor_locator(NullLocator())
        axis.set_xlabel("group size (replicas)")
    _speed_axis(speed, shown)
    efficiency.set_ylim(bottom=0)
    efficiency.set_ylabel("efficiency (% of linear scaling)")
    _name_lines(speed, shown, lambda row: row.throughput, scale=1.0)
    _name_lines(efficiency, shown, lambda row: row.efficiency, scale=100.0)
    speed.legend(handles=_key(shown), loc="upper left", handlelength=3.0)
    networks = ", ".join(dict.fromkeys(one_line(one.series.network.name) for one in shown))
    return finish(
        figure,
        title=f"Throughput and efficiency beyond what was measured, on {networks}",
        caption=source.caption(_measured_values(shown), _remarks(shown, projections)),
    )


def _rows(one: Projection) -> list[ProjectedRow]:
    return [row for row in one.rows if row.throughput and row.efficiency]


def _speed_axis(axes: Axes, shown: Sequence[Projection]) -> None:
    values = [row.throughput.value for one in shown for row in _rows(one) if row.throughput]
    # Powers of ten alone would leave a short axis nearly without numbers.
    short = max(values) < 100 * min(values)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5) if short else (1,)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(plain_number))
    axes.set_ylabel(f"throughput ({item_of(shown)}/s)")


def _ideal(axes: Axes, shown: Sequence[Projection], sizes: Sequence[int]) -> None:
    """n times one replica, of the fastest; none where nobody compares their speeds."""
    if len({one.series.trial.work for one in shown}) > 1:
        return
    ones = [row.throughput.value for one in shown for row in _rows(one)[:1] if row.throughput]
    firsts = [_rows(one)[0].group_size for one in shown]
    if set(firsts) == {1}:
        axes.plot(sizes, [max(ones) * n for n in sizes], color=MUTED, linewidth=1.0, zorder=1)


def _draw(axes: Axes, one: Projection, value: Value, colour: str, *, scale: float) -> None:
    """A line from point to point in the style of its end; bars where it was measured, and a band
    from the last such point on."""
    points = [(row, estimate) for row in _rows(one) if (estimate := value(row)) is not None]
    xs = [row.group_size for row, _ in points]
    ys = [estimate.value * scale for _, estimate in points]
    ends = zip(*(estimate.ends for _, estimate in points), strict=True)
    low, high = ([end * scale for end in side] for side in ends)
    for place, (row, _) in enumerate(points):
        look, measured = LOOKS[row.kind], row.kind == "measured"
        if place:
            stretch = slice(place - 1, place + 1)
            axes.plot(xs[stretch], ys[stretch], color=colour, linestyle=look.line)
            if not measured:
                band = (xs[stretch], low[stretch], high[stretch])
                axes.fill_between(*band, color=colour, alpha=BAND_OPACITY, linewidth=0)
        axes.errorbar(
            xs[place],
            ys[place],
            yerr=[[ys[place] - low[place]], [high[place] - ys[place]]] if measured else None,
            color=colour,
            marker=look.marker,
            markerfacecolor=colour if look.filled else "white",
            elinewidth=1.0,
            capsize=2.5,
            zorder=3,
        )


def _name_lines(axes: Axes, shown: Sequence[Projection], value: Value, *, scale: float) -> None:
    names = []
    for one, colour in zip(shown, PALETTE[: len(shown)], strict=True):
        last = _rows(one)[-1]
        if (estimate := value(last)) is not None:
            names.append(
                (last.group_size, scale * estimate.value, one_line(one.series.label), colour)
            )
    label_lines(axes, names)


def _key(shown: Sequence[Projection]) -> list[Line2D]:
    """Legend of markers and lines; the series are named at their lines."""
    kinds = {row.kind for one in shown for row in _rows(one)}
    handles = [
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
    return [*handles, Line2D([], [], color=MUTED, linewidth=1.0, label="linear scaling")]


def _remarks(shown: Sequence[Projection], every: Sequence[Projection]) -> list[str]:
    remarks = [f"bands: {units.percent(CONFIDENCE)}, of inputs and of the model"]
    if len(shown) < len(every):
        remarks.insert(0, f"{len(shown)} of {len(every)} series")
    return [*remarks, *_refusals(shown)]


def _refusals(shown: Sequence[Projection]) -> list[str]:
    """The group sizes without a number, and of which series if not of all."""
    sizes = {
        one.series.label: ", ".join(
            f"{row.group_size:,}" for row in one.rows if row.kind == "refused"
        )
        for one in shown
    }
    alike = len({*sizes.values()}) == 1
    said = [
        f"refused{'' if alike else f' of {label}'}: {refused} replicas"
        for label, refused in sizes.items()
        if refused
    ]
    return said[:1] if alike else said


def _measured_values(shown: Sequence[Projection]) -> list[Estimate]:
    return [
        row.throughput
        for one in shown
        for row in _rows(one)
        if row.kind == "measured" and row.throughput is not None
    ]

"""Bandwidth of collectives against the size of the message, beside that of copies."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from dpbench import units
from dpbench.analysis.communication.bandwidth import bus_factor
from dpbench.analysis.communication.timings import MeasuredCollective, measured
from dpbench.messages import one_line
from dpbench.records.collectives import Collective, CollectiveRecord
from dpbench.records.environment import environment_line
from dpbench.report.charts import curves
from dpbench.report.charts.curves import Curve, Label, label_lines
from dpbench.report.charts.kinds import CHARTS
from dpbench.report.charts.source import (
    ChartSource,
    NothingToDraw,
    interval_words,
)
from dpbench.report.charts.style import (
    MUTED,
    SeriesName,
    SeriesStyle,
    finish,
    panels,
    scaled_axis,
    series_styles,
)

MOST_PANELS = 9
MOST_TICKS, FEW_TICKS = 5, 3
"""Sizes that there is room for at the axis of one panel, and of several beside each other."""
Panel = Sequence[MeasuredCollective]


def bandwidth(records: Sequence[CollectiveRecord], source: ChartSource) -> Figure:
    """One panel a collective and group size, a line a backend; of `source` place and name."""
    every = measured(records)
    found = [one for one in every if len(one.sizes) > 1 and _bus_factor(one) > 0]
    if not found:
        raise NothingToDraw("no collective was measured at two sizes or more")
    groups: dict[tuple[Collective, int], list[MeasuredCollective]] = {}
    for one in found:
        groups.setdefault((one.spec.collective, one.spec.group_size), []).append(one)
    shown = list(groups.items())[:MOST_PANELS]
    backends = dict.fromkeys(one.spec.backend for one in found)
    styles = series_styles([("collective", backend) for backend in backends])
    figure, axes = panels(len(shown), share_y=True)
    for axis, ((collective, group_size), group) in zip(axes, shown, strict=True):
        _panel(axis, group, styles)
        axis.set_title(f"{collective} ×{group_size}")
    fastest = [max(size.bus_bandwidth.value for size in one.sizes) for one in found]
    for axis in axes:
        scaled_axis(axis.yaxis, fastest, "B/s", "bandwidth")
        if not curves.first_in_row(axis):
            axis.set_ylabel("")
    return finish(
        figure,
        title=CHARTS["bandwidth"].title,
        caption=_caption(found, _left_out(every), source, len(groups)),
    )


def _panel(axes: Axes, group: Panel, styles: dict[SeriesName, SeriesStyle]) -> None:
    """Busbw with its intervals, algbw as a dotted line where it is another number."""
    equal = _bus_factor(group[0]) == 1
    names: list[Label] = []
    if sizes := _copies(group):
        axes.plot([*sizes], [*sizes.values()], color=MUTED, linewidth=1.0, zorder=1)
        names.append((*list(sizes.items())[-1], "copies", MUTED))
    lines = [
        _curve(one, styles["collective", one.spec.backend], "" if equal else " busbw")
        for one in group
    ]
    names += curves.draw_curves(axes, lines, log=True)
    for one in () if equal else group:
        colour = styles["collective", one.spec.backend].color
        xs = [size.nbytes for size in one.sizes]
        ys = [size.algorithm_bandwidth.value for size in one.sizes]
        axes.plot(xs, ys, color=colour, linestyle=":", linewidth=1.0)
        names.append((xs[-1], ys[-1], f"{one_line(one.spec.backend)} algbw", colour))
    _axes(axes, [size.nbytes for one in group for size in one.sizes])
    label_lines(axes, names)


def _curve(one: MeasuredCollective, style: SeriesStyle, which: str) -> Curve:
    return Curve(
        label=f"{one_line(one.spec.backend)}{which}",
        style=style,
        xs=tuple(size.nbytes for size in one.sizes),
        ys=tuple(size.bus_bandwidth for size in one.sizes),
    )


def _copies(group: Panel) -> dict[int, float]:
    """Bytes per second by rising size; of several backends, which copy alike, the fastest."""
    best: dict[int, float] = {}
    for size in (size for one in group for size in one.sizes):
        if size.copy_bandwidth is not None:
            best[size.nbytes] = max(size.copy_bandwidth.value, best.get(size.nbytes, 0.0))
    return dict(sorted(best.items()))


def _axes(axes: Axes, sizes: Sequence[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(
        curves.chosen_sizes(sizes, MOST_TICKS if len(axes.figure.axes) == 1 else FEW_TICKS)
    )
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: units.bytes_binary(value)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("message size")


def _left_out(every: Panel) -> list[str]:
    """Collectives that are no line, and why."""
    reasons = {
        "of one rank, which have no bandwidth,": sum(_bus_factor(one) == 0 for one in every),
        "of one size": sum(_bus_factor(one) > 0 and len(one.sizes) == 1 for one in every),
        "that did not complete": sum(_bus_factor(one) > 0 and not one.sizes for one in every),
    }
    return [f"{units.counted(n, 'collective')} {why} left out" for why, n in reasons.items() if n]


def _caption(found: Panel, left_out: Sequence[str], source: ChartSource, count: int) -> str:
    equal = [one for one in found if _bus_factor(one) == 1]
    remarks = [] if len(equal) == len(found) else ["solid: busbw, dotted: algbw"]
    if equal:
        alike = dict.fromkeys(f"{one.spec.collective} ×{one.spec.group_size}" for one in equal)
        remarks.append(f"busbw and algbw of {' and '.join(alike)} are equal")
    if count > MOST_PANELS:
        remarks.append(f"first {MOST_PANELS} of {count} panels")
    used = {identifier for one in found for identifier in one.environment_ids}
    parts = [
        *interval_words([size.bus_bandwidth for one in found for size in one.sizes]),
        *remarks,
        *left_out,
        "copies: as many bytes from one tensor to another by all ranks at once, without interval"
        + (", the fastest of the backends" if len({one.spec.backend for one in found}) > 1 else ""),
        environment_line(source.environments, used),
        source.name,
    ]
    return " · ".join(parts)


def _bus_factor(one: MeasuredCollective) -> float:
    return bus_factor(one.spec.collective, one.spec.group_size)

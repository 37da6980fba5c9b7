"""Throughput, speedup and efficiency against group size, one panel per batch size."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from dpbench.analysis.configuration import ConfigurationSummary
from dpbench.analysis.estimate import Estimate
from dpbench.messages import one_line
from dpbench.report.charts.kinds import CHARTS
from dpbench.report.charts.source import ChartSource, NothingToDraw
from dpbench.report.charts.style import (
    MOST_PANELS,
    MOST_SERIES,
    MUTED,
    add_tip,
    category_axis,
    finish,
    legend,
    panels,
    scaled_axis,
    series_styles,
)
from dpbench.report.numbers import quantity
from dpbench.specs.traits import SINGLE

Rows = Sequence[ConfigurationSummary]
Read = Callable[[ConfigurationSummary], Estimate | None]
LINEAR_UP_TO = 16
"""Largest group size with a linear axis of speeds."""
SPREAD = 0.36
"""Width within a group size over which series stand side by side."""


def throughput(source: ChartSource) -> Figure:
    """Linear scaling starts at `single`, or at the fastest implementation at group size 1."""

    def ideal(rows: Rows, group_size: int) -> float | None:
        ones = {
            row.implementation: row.throughput.value
            for row in rows
            if row.group_size == 1 and row.throughput
        }
        start = ones.get(SINGLE) or max(ones.values(), default=None)
        return None if start is None else group_size * start

    return _draw(source, "throughput", lambda row: row.throughput, ideal)


def speedup(source: ChartSource) -> Figure:
    """Each curve is relative to itself at group size 1."""
    return _draw(
        source, "speedup", lambda row: _scaled(row, row.speedup), lambda _, size: float(size)
    )


def efficiency(source: ChartSource) -> Figure:
    """Each curve is relative to itself at group size 1."""
    return _draw(
        source, "efficiency", lambda row: _scaled(row, row.efficiency), lambda _, size: 1.0
    )


def _scaled(row: ConfigurationSummary, value: Estimate | None) -> Estimate | None:
    return None if row.implementation == SINGLE else value


def _draw(
    source: ChartSource,
    name: str,
    read: Read,
    ideal: Callable[[Rows, int], float | None],
) -> Figure:
    """Lines with intervals, and in grey where linear scaling would be."""
    measured = [row for row in source.rows if read(row) is not None]
    series = list(dict.fromkeys((row.implementation, row.backend) for row in measured))
    kept = [row for row in measured if (row.implementation, row.backend) in series[:MOST_SERIES]]
    sizes = sorted({row.group_size for row in kept})
    if len(sizes) < 2:
        raise NothingToDraw(f"no {name} at two group sizes or more")
    batches = sorted({row.batch_size or 0 for row in kept})
    shown = batches[:MOST_PANELS]
    drawn = [row for row in kept if (row.batch_size or 0) in shown]
    values = [value for row in drawn if (value := read(row)) is not None]
    is_log = name != "efficiency" and sizes[-1] > LINEAR_UP_TO
    figure, axes = panels(len(shown), share_y=True)
    highest = max(value.value for value in values)
    for axis, batch_size in zip(axes, shown, strict=True):
        rows = [row for row in drawn if (row.batch_size or 0) == batch_size]
        _panel(axis, rows, read, sizes, series[:MOST_SERIES])
        line = {x: y for x, size in enumerate(sizes) if (y := ideal(rows, size)) is not None}
        _linear_scaling(axis, line, "linear from one replica" if name == "throughput" else "linear")
        category_axis(axis, [f"{size:,}" for size in sizes], "group size (replicas)")
        axis.set_title(f"batch size {batch_size:,}" if batch_size else "")
        if is_log:
            axis.set_yscale("log")
            axis.yaxis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5)))
        else:
            axis.set_ylim(0, 1.12 * max(highest, 1.0 if name == "efficiency" else 0.0))
        scaled_axis(axis, values[0].unit if name != "speedup" else "", name)
    for axis in axes[1:]:
        axis.set_ylabel("")
    legend(figure)
    remarks = []
    if name != "throughput":
        remarks.append("relative to the same implementation at group size 1")
    if len(series) > MOST_SERIES:
        remarks.append(f"first {MOST_SERIES} of {len(series)} series")
    if len(batches) > MOST_PANELS:
        remarks.append(f"first {MOST_PANELS} of {len(batches)} batch sizes")
    return finish(figure, title=CHARTS[name].title, caption=source.caption(values, remarks))


def _panel(
    axes: Axes,
    rows: Rows,
    read: Read,
    sizes: Sequence[int],
    series: Sequence[tuple[str, str | None]],
) -> None:
    styles = series_styles(series)
    for place, name in enumerate(series):
        points = [
            (sizes.index(row.group_size), value)
            for row in rows
            if (row.implementation, row.backend) == name and (value := read(row)) is not None
        ]
        if points:
            shift = SPREAD * ((place + 0.5) / len(series) - 0.5)
            label = next(r.series for r in rows if (r.implementation, r.backend) == name)
            axes.errorbar(
                [x + shift for x, _ in points],
                [value.value for _, value in points],
                yerr=[[value.sides[side] for _, value in points] for side in (0, 1)],
                label=one_line(label),
                elinewidth=1.0,
                **styles[name].marks,
            )
            for x, value in points:
                text = f"{one_line(label)} ×{sizes[x]}: {quantity(value)}"
                add_tip(axes, x + shift, value.value, text)


def _linear_scaling(axes: Axes, line: Mapping[int, float], label: str) -> None:
    if line:
        axes.plot([*line], [*line.values()], color=MUTED, linewidth=1.0, zorder=1, label=label)

"""Throughput, speedup and efficiency against group size, one panel per batch size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpbench import units
from dpbench.analysis.estimate import Estimate
from dpbench.analysis.row import Row
from dpbench.messages import one_line
from dpbench.report.charts.source import ChartSource, NothingToDraw, first_of
from dpbench.report.charts.style import (
    MOST_PANELS,
    MOST_SERIES,
    MUTED,
    SPREAD,
    SeriesName,
    category_axis,
    draw_points,
    legend,
    panels,
    scaled_axis,
    series_of,
    series_styles,
)
from dpbench.report.footnotes import speedup_reference
from dpbench.report.numbers import quantity
from dpbench.specs.traits import SINGLE

Point = tuple[Row, Estimate]
Lines = dict[SeriesName, list[Point]]
"""The points of each line, in the order of the table."""


def throughput(source: ChartSource) -> Figure:
    """Linear scaling starts at `single`; in a sweep without it, at the fastest implementation at
    group size 1."""
    has_single = any(row.implementation == SINGLE for row in source.rows)
    starts: dict[int | None, float] = {}
    for row in source.rows:
        is_start = row.implementation == SINGLE if has_single else row.group_size == 1
        if is_start and row.throughput and not row.throughput.is_too_noisy:
            speed = row.throughput.value
            starts[row.batch_size] = max(speed, starts.get(row.batch_size, 0.0))

    def linear(batch_size: int | None, sizes: Sequence[int]) -> list[float]:
        return [size * starts[batch_size] for size in sizes if batch_size in starts]

    return _draw(source, "throughput", lambda row: row.throughput, linear)


def speedup(source: ChartSource) -> Figure:
    """The curve of `single`, which is 1 by definition, is left out."""
    return _draw(source, "speedup", lambda row: row.speedup, lambda _, sizes: [*map(float, sizes)])


def efficiency(source: ChartSource) -> Figure:
    """The curve of `single`, which is 1 by definition, is left out."""
    return _draw(
        source, "efficiency", lambda row: row.efficiency, lambda _, sizes: [1.0] * len(sizes)
    )


def _draw(
    source: ChartSource,
    name: str,
    read: Callable[[Row], Estimate | None],
    linear: Callable[[int | None, Sequence[int]], list[float]],
) -> Figure:
    """Lines with intervals, and in gray linear scaling at a batch size and group sizes."""
    is_relative = name != "throughput"
    known = [
        (row, value)
        for row in source.rows
        if (value := read(row)) is not None and not (is_relative and row.implementation == SINGLE)
    ]
    stated = [(row, value) for row, value in known if not value.is_too_noisy]
    noisy = len(known) - len(stated)
    left_out = [f"{units.counted(noisy, 'value')} left out: too noisy"] if noisy else []
    every: Lines = {}
    for row, value in stated:
        every.setdefault(series_of(row), []).append((row, value))
    lines = dict(islice(every.items(), MOST_SERIES))
    points = [point for line in lines.values() for point in line]
    sizes = sorted({row.group_size for row, _ in points})
    if len(sizes) < 2:
        why = f" ({left_out[0]})" if left_out else ""
        raise NothingToDraw(f"no {name} at two group sizes or more{why}")
    batches = sorted({row.batch_size for row, _ in points}, key=lambda size: size or 0)
    figure, axes = panels(len(batches[:MOST_PANELS]), share_y=True)
    for axis, batch_size in zip(axes, batches, strict=False):
        _draw_lines(axis, lines, batch_size, sizes)
        if reference := linear(batch_size, sizes):
            label = "linear" if is_relative else "linear from one replica"
            look: dict[str, Any] = {"color": MUTED, "linewidth": 1.0, "zorder": 1}
            axis.plot(range(len(sizes)), reference, label=label, **look)
        category_axis(axis, [f"{size:,}" for size in sizes], "group size (replicas)")
        axis.set_title(f"batch size {batch_size:,}" if batch_size else "")
        scaled_axis(axis, "" if name == "speedup" else points[0][1].unit, name)
    for axis in axes:
        axis.set_ylim(bottom=0)  # only now: a limit stops the common axis from growing
    legend(figure)
    remarks = [
        *([speedup_reference([row for row, _ in points])] if is_relative else ()),
        *left_out,
        *first_of(len(lines), len(every), "series"),
        *first_of(len(axes), len(batches), "batch sizes"),
    ]
    values = [value for row, value in points if row.batch_size in batches[:MOST_PANELS]]
    return source.finish(figure, name, values, remarks)


def _draw_lines(axis: Axes, lines: Lines, batch_size: int | None, sizes: Sequence[int]) -> None:
    """Lines of one batch size, side by side at each group size."""
    styles = series_styles([*lines])
    for place, (series, line) in enumerate(lines.items()):
        shift = SPREAD * ((place + 0.5) / len(lines) - 0.5)
        own = [(row, value) for row, value in line if row.batch_size == batch_size]
        if not own:
            continue
        label = one_line(own[0][0].series)
        points = [
            (
                sizes.index(row.group_size) + shift,
                value,
                f"{label} ×{row.group_size}: {quantity(value)}",
            )
            for row, value in own
        ]
        draw_points(axis, points, label=label, **styles[series])

"""Throughput, speedup and efficiency against group size, one panel per batch size."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from matplotlib.figure import Figure

from dpbench.analysis.configuration import ConfigurationSummary
from dpbench.analysis.estimate import Estimate
from dpbench.messages import one_line
from dpbench.report.charts.kinds import CHARTS
from dpbench.report.charts.source import ChartSource, NothingToDraw, noisy_words
from dpbench.report.charts.style import (
    MOST_PANELS,
    MOST_SERIES,
    MUTED,
    SPREAD,
    category_axis,
    draw_points,
    finish,
    legend,
    panels,
    scaled_axis,
    series_styles,
)
from dpbench.report.footnotes import copies_need_single
from dpbench.report.numbers import quantity
from dpbench.specs.traits import SINGLE

Rows = Sequence[ConfigurationSummary]


def throughput(source: ChartSource) -> Figure:
    """Linear scaling starts at `single`; in a sweep without it, at the fastest implementation at
    group size 1."""
    has_single = any(row.implementation == SINGLE for row in source.rows)

    def ideal(rows: Rows, group_size: int) -> float | None:
        ones = {
            row.implementation: row.throughput.value
            for row in rows
            if row.group_size == 1 and row.throughput and not row.throughput.is_too_noisy
        }
        start = ones.get(SINGLE) if has_single else max(ones.values(), default=None)
        return None if start is None else group_size * start

    return _draw(source, "throughput", lambda row: row.throughput, ideal)


def speedup(source: ChartSource) -> Figure:
    """Each curve is relative to itself at group size 1."""
    return _draw(source, "speedup", lambda row: row.speedup, lambda _, size: float(size))


def efficiency(source: ChartSource) -> Figure:
    """Each curve is relative to itself at group size 1."""
    return _draw(source, "efficiency", lambda row: row.efficiency, lambda _, size: 1.0)


def _draw(
    source: ChartSource,
    name: str,
    read: Callable[[ConfigurationSummary], Estimate | None],
    ideal: Callable[[Rows, int], float | None],
) -> Figure:
    """Lines with intervals, and in grey where linear scaling would be."""
    is_relative = name != "throughput"
    known = [
        (row, value)
        for row in source.rows
        if (value := read(row)) is not None and not (is_relative and row.implementation == SINGLE)
    ]
    found = [(row, value) for row, value in known if not value.is_too_noisy]
    noisy = noisy_words(len(known) - len(found))
    if is_relative:  # a panel of 1 and 100 % says nothing
        stated = {row.batch_size for row, value in found if value.basis != "baseline"}
        found = [(row, value) for row, value in found if row.batch_size in stated]
    every = list(dict.fromkeys((row.implementation, row.backend) for row, _ in found))
    series, styles = every[:MOST_SERIES], series_styles(every)
    found = [pair for pair in found if (pair[0].implementation, pair[0].backend) in series]
    sizes = sorted({row.group_size for row, _ in found})
    if len(sizes) < 2:
        why = f" ({noisy[0]})" if noisy else ""
        raise NothingToDraw(f"no {name} at two group sizes or more{why}")
    batches = sorted({row.batch_size or 0 for row, _ in found})
    shown = batches[:MOST_PANELS]
    values = [value for row, value in found if (row.batch_size or 0) in shown]
    highest = max([value.value for value in values] + [1.0] * (name == "efficiency"))
    ends = max(value.ends[1] for value in values)  # room for intervals, unless they are very wide
    top = max(1.12 * highest, min(1.03 * ends, 2 * highest))
    lines = {
        batch: {x: y for x, size in enumerate(sizes) if (y := ideal(rows, size)) is not None}
        for batch in shown
        if (rows := [row for row, _ in found if (row.batch_size or 0) == batch])
    }
    top = max([top, *(1.03 * y for line in lines.values() for y in line.values())])
    figure, axes = panels(len(shown), share_y=True)
    for axis, batch_size in zip(axes, shown, strict=True):
        pairs = [(row, value) for row, value in found if (row.batch_size or 0) == batch_size]
        for place, (implementation, backend) in enumerate(series):
            shift = SPREAD * ((place + 0.5) / len(series) - 0.5)
            own = [
                (row, value)
                for row, value in pairs
                if (row.implementation, row.backend) == (implementation, backend)
            ]
            if own:
                label = one_line(own[0][0].series)
                points = [
                    (
                        sizes.index(row.group_size) + shift,
                        value,
                        f"{label} ×{row.group_size}: {quantity(value)}",
                    )
                    for row, value in own
                ]
                draw_points(axis, points, label=label, **styles[implementation, backend])
        label = "linear" if is_relative else "linear from one replica"
        if line := lines[batch_size]:
            axis.plot([*line], [*line.values()], color=MUTED, linewidth=1.0, zorder=1, label=label)
        category_axis(axis, [f"{size:,}" for size in sizes], "group size (replicas)")
        axis.set_title(f"batch size {batch_size:,}" if batch_size else "")
        axis.set_ylim(0, top)
        unit = "" if name == "speedup" else values[0].unit
        scaled_axis(axis, unit, name)
    legend(figure)
    remarks = ["relative to the same implementation at group size 1"] if is_relative else []
    if is_relative and copies_need_single([row for row, _ in found]):
        remarks.append("independent: relative to single")
    remarks += noisy
    if len(every) > MOST_SERIES:
        remarks.append(f"first {MOST_SERIES} of {len(every)} series")
    if len(batches) > MOST_PANELS:
        remarks.append(f"first {MOST_PANELS} of {len(batches)} batch sizes")
    return finish(figure, title=CHARTS[name].title, caption=source.caption(values, remarks))

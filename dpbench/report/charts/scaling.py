"""Throughput, speedup and efficiency against group size, one panel per batch size."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

from matplotlib.ticker import EngFormatter, FuncFormatter

from dpbench import units
from dpbench.analysis.analyze import Analysis
from dpbench.analysis.estimate import Estimate
from dpbench.analysis.rows import Row
from dpbench.messages import one_line
from dpbench.report.charts.kinds import NothingToDraw
from dpbench.report.charts.style import (
    MAX_SERIES,
    MUTED,
    Drawn,
    category_axis,
    draw_points,
    first_of,
    panels,
    series_styles,
)
from dpbench.report.notes import relative_to
from dpbench.specs.traits import SINGLE

SPREAD, BAND = 0.36, 0.26
"""Width of a group size over which series stand side by side; half the width of its band."""
BESIDE = "gray bands: one group size each, its points side by side"


def throughput(analysis: Analysis) -> Drawn:
    """Linear scaling starts at `single`; in a sweep without it, at the fastest implementation at
    group size 1."""
    has_single = any(row.implementation == SINGLE for row in analysis.rows)
    starts: dict[int | None, float] = {}
    for row in analysis.rows:
        is_start = row.implementation == SINGLE if has_single else row.group_size == 1
        if is_start and row.throughput and not row.throughput.is_too_noisy:
            speed = row.throughput.value
            starts[row.batch_size] = max(speed, starts.get(row.batch_size, 0.0))
    return _draw(analysis, "throughput", starts)


def speedup(analysis: Analysis) -> Drawn:
    """The curve of `single`, which is 1 by definition, is left out."""
    return _draw(analysis, "speedup", {row.batch_size: 1.0 for row in analysis.rows})


def efficiency(analysis: Analysis) -> Drawn:
    """The curve of `single`, which is 1 by definition, is left out."""
    return _draw(analysis, "efficiency", {row.batch_size: 1.0 for row in analysis.rows})


def _draw(analysis: Analysis, name: str, starts: Mapping[int | None, float]) -> Drawn:
    """Lines with intervals, and in gray linear scaling from the start of each batch size. A series
    that was not measured at group size 1 starts at `single`."""
    is_relative = name != "throughput"
    known: list[tuple[Row, Estimate]] = [
        (row, value)
        for row in analysis.rows
        if (value := getattr(row, name)) and not (is_relative and row.implementation == SINGLE)
    ]
    stated: dict[str, list[tuple[Row, Estimate]]] = {}
    for row, value in known:
        if not value.is_too_noisy:
            stated.setdefault(row.series, []).append((row, value))
    noisy = len(known) - sum(map(len, stated.values()))
    left_out = [f"{units.counted(noisy, 'value')} left out: too noisy"] if noisy else []
    for line in stated.values():
        references = dict.fromkeys(row.reference for row, _ in line if row.reference)
        if all(row.group_size > 1 for row, _ in line):
            line[:0] = [
                (row, value)
                for row in references
                if (value := getattr(row, name)) and not value.is_too_noisy
            ]
    lines = dict(islice(stated.items(), MAX_SERIES))
    points = [point for line in lines.values() for point in line]
    sizes = sorted({row.group_size for row, _ in points})
    if len(sizes) < 2:
        why = f" ({left_out[0]})" if left_out else ""
        raise NothingToDraw(f"no {name} at two group sizes or more{why}")
    batches = sorted({row.batch_size for row, _ in points}, key=lambda size: size or 0)
    labels = {
        "throughput": f"throughput ({points[0][1].unit})",
        "efficiency": "efficiency (% of linear scaling)",
    }
    figure, shown, remarks = panels(batches, "batch sizes")
    styles = series_styles(line[-1][0] for line in lines.values())
    for axis, batch_size in shown:
        for place, (series, line) in enumerate(lines.items()):
            shift = SPREAD * ((place + 0.5) / len(lines) - 0.5)
            marks = [
                (sizes.index(row.group_size) + shift, value)
                for row, value in line
                if row.batch_size == batch_size
            ]
            look = styles[series]
            if len({row.group_size for row, _ in line}) == 1:
                look = {**look, "linestyle": "none"}  # nor has its key in the legend one
            if marks:
                draw_points(axis, marks, label=one_line(series), **look)
        if batch_size in starts:
            growth = [1] * len(sizes) if name == "efficiency" else sizes
            linear = [starts[batch_size] * size for size in growth]
            axis.plot(
                range(len(sizes)), linear, label="linear", color=MUTED, linewidth=1.0, zorder=1
            )
        for place in range(len(sizes)) if len(lines) > 1 else ():
            axis.axvspan(place - BAND, place + BAND, color=MUTED, alpha=0.1, linewidth=0, zorder=0)
        axis.grid(len(lines) == 1, axis="x")
        category_axis(axis, [f"{size:,}" for size in sizes], "group size (replicas)")
        axis.set_title(f"batch size {batch_size:,}" if batch_size else "")
        axis.yaxis.set_major_formatter(FuncFormatter(_percent if name == "efficiency" else _count))
        axis.set_ylabel(labels.get(name, name))
    for axis, _ in shown:
        axis.set_ylim(bottom=0)  # only now: a limit stops the common axis from growing
    drawn = {batch_size for _, batch_size in shown}
    reference_words = [relative_to([row for row, _ in points])] if is_relative else []
    return Drawn(
        figure,
        [value for row, value in points if row.batch_size in drawn],
        [
            *reference_words,
            *([BESIDE] if len(lines) > 1 else []),
            *left_out,
            *first_of(len(lines), len(stated), "series"),
            *remarks,
        ],
    )


def _percent(value: float, _: object) -> str:
    return f"{100 * value:.0f}"


def _count(value: float, _: object) -> str:
    """Writes "150 k" from 100,000 on."""
    return f"{value:,.5g}" if abs(value) < 1e5 else EngFormatter(sep=" ").format_eng(value)

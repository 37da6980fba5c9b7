"""Curves, a panel per batch size or collective: speeds and bandwidth with intervals, and losses."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, NullLocator, PercentFormatter

from dpbench import units
from dpbench.analysis.analyze import Analysis
from dpbench.analysis.collectives import Collectives
from dpbench.analysis.estimate import Estimate
from dpbench.analysis.losses import loss_curve
from dpbench.analysis.rows import Row
from dpbench.analysis.sentences import relative_to
from dpbench.messages import one_line
from dpbench.report.charts.figures import (
    HATCHES,
    INK,
    MAX_PANELS,
    MUTED,
    captioned,
    draw_points,
    first_of,
    line_pattern,
    panels,
    series_styles,
)
from dpbench.report.charts.kinds import NO_COLLECTIVES, NothingToDraw
from dpbench.specs.collective import CollectiveSpec
from dpbench.specs.traits import SINGLE

MAX_SERIES = 8
MAX_LABELS = 6
CURVE_INCHES = 1.6
"""Height of a panel."""
GROUP_SPREAD, BAND_HALF_WIDTH, BARS_WIDTH = 0.36, 0.26, 0.84
"""Width of a group size over which the points of series stand side by side; half the width of its
band; width over which bars stand side by side."""


def growth(analysis: Analysis, name: Literal["throughput", "speedup", "efficiency"]) -> Figure:
    """Curves with intervals, or bars where there are two group sizes, and in gray linear scaling.
    `single`, whose speedup and efficiency are 1 by definition, has a curve of throughput alone;
    those of series that were not measured at group size 1 start from it."""

    def stated(row: Row) -> Estimate | None:
        value: Estimate | None = getattr(row, name)
        return None if value is None or value.is_too_noisy else value

    has_bars = len({row.group_size for row in analysis.rows}) == 2
    curves: dict[str, list[Row]] = {}
    for row in analysis.rows:
        if stated(row) and (name == "throughput" or row.implementation != SINGLE):
            curves.setdefault(row.series, []).append(row)
    for curve in () if has_bars else curves.values():
        if all(row.group_size > 1 for row in curve):
            references = dict.fromkeys(row.reference for row in curve if row.reference)
            curve[:0] = filter(stated, references)
    drawn = dict(islice(curves.items(), MAX_SERIES))
    rows = [row for curve in drawn.values() for row in curve]
    sizes = sorted({row.group_size for row in rows})
    noisy = sum(bool(getattr(row, name)) and not stated(row) for row in analysis.rows)
    left_out = [f"{units.counted(noisy, 'value')} left out: too noisy"] if noisy else []
    if not rows or (len(sizes) < 2 and not has_bars):
        why = f" ({left_out[0]})" if left_out else ""
        raise NothingToDraw(f"no {name} at two group sizes or more{why}")
    figure, shown, fewer_panels = _batch_panels(rows)
    styles = series_styles(analysis.rows)
    estimates = [value for row in rows if row.batch_size in shown and (value := stated(row))]
    labels = {
        "throughput": f"throughput ({estimates[0].unit})",
        "efficiency": "efficiency (% of linear scaling)",
    }
    for batch_size, axis in shown.items():
        points = {
            series: [
                (sizes.index(row.group_size), value)
                for row in curve
                if row.batch_size == batch_size and (value := stated(row))
            ]
            for series, curve in drawn.items()
        }
        _draw_series(axis, points, styles, bands=range(0 if has_bars else len(sizes)))
        of_batch = [row for row in analysis.rows if row.batch_size == batch_size]
        _draw_linear(axis, name, sizes, of_batch)
        percents = PercentFormatter(1, decimals=0, symbol="")
        axis.yaxis.set_major_formatter(percents if name == "efficiency" else "{x:,.10g}")
        axis.set_ylabel(labels.get(name, name))
        category_axis(axis, [f"{size:,}" for size in sizes], "group size (replicas)")
    for axis in shown.values():
        axis.set_ylim(bottom=0)  # only now: a limit stops the common axis from growing
    remarks = [] if name == "throughput" else [relative_to(rows)]
    if len(curves) > 1 and not has_bars:
        remarks.append("gray bands: one group size each, its points side by side")
    remarks += [*left_out, *first_of(MAX_SERIES, len(curves), "series"), *fewer_panels]
    return captioned(figure, analysis, estimates, remarks)


throughput = partial(growth, name="throughput")
speedup = partial(growth, name="speedup")
efficiency = partial(growth, name="efficiency")


def _draw_linear(axis: Axes, name: str, sizes: Sequence[int], rows: Iterable[Row]) -> None:
    """Linear scaling. That of throughput starts at the highest one that speedups of the `rows` are
    relative to: that of `single`, or without it of an implementation at group size 1."""
    look: dict[str, Any] = {"label": "linear", "color": MUTED, "linewidth": 1.0, "zorder": 1}
    starts = [1.0]
    if name == "throughput":
        speeds = [row.reference.throughput for row in rows if row.reference]
        starts = [speed.value for speed in speeds if speed and not speed.is_too_noisy]
    if name == "efficiency":
        axis.axhline(1, **look)
    elif starts:
        axis.plot(range(len(sizes)), [max(starts) * size for size in sizes], **look)


def _draw_series(
    axis: Axes,
    series: Mapping[str, Sequence[tuple[int, Estimate]]],
    styles: Mapping[str, dict[str, Any]],
    bands: Sequence[int],
) -> None:
    """Group sizes and values of each series, those of one size side by side: as points on `bands`,
    or as bars if there are none."""
    width = (GROUP_SPREAD if bands else BARS_WIDTH) / len(series)
    for name, values in series.items():
        marks = []
        for place, value in values:
            beside = [other for other, points in series.items() if place in dict(points)]
            shift = width * (beside.index(name) - (len(beside) - 1) / 2)
            marks.append((place + shift, value))
        look = {"label": one_line(name), **styles[name]}
        if marks and not bands:
            heights = [value.value for _, value in marks]
            fill = {"color": look["color"], "hatch": HATCHES[look["linestyle"]]}
            places = [at for at, _ in marks]
            axis.bar(places, heights, 0.9 * width, edgecolor="white", label=look["label"], **fill)
            look = {"label": "_", "color": INK}  # which no legend has
        if len(marks) == 1 or not bands:
            look["linestyle"] = "none"
        if marks:
            draw_points(axis, marks, **look)
    for place in bands if len(series) > 1 else ():
        ends = place - BAND_HALF_WIDTH, place + BAND_HALF_WIDTH
        axis.axvspan(*ends, color=MUTED, alpha=0.1, linewidth=0, zorder=0)
    axis.grid(len(series) == 1, axis="x")


def loss(analysis: Analysis) -> Figure:
    """One panel per batch size; each implementation at its largest group size, in the repetition
    of typical length, as repetitions with one seed follow the same curve."""
    measured = [row for row in analysis.rows if row.usable_records]
    largest = {(row.series, row.batch_size): row for row in measured}.values()
    lines = []
    for row in largest:
        curves = [*filter(None, map(loss_curve, row.usable_records))]
        if curves and all(len(losses) > 1 for _, losses in curves):
            by_length = sorted(curves, key=lambda curve: float(curve[0][-1]))
            lines.append((row, by_length[(len(curves) - 1) // 2]))
    if not lines:
        raise NothingToDraw("no completed trial recorded two losses or more, all of them finite")
    styles = series_styles(analysis.rows)
    names = [*dict.fromkeys(row.series for row, _ in lines)]
    figure, shown, left_out = _batch_panels(row for row, _ in lines)
    for row, (seconds, losses) in lines:
        if row.batch_size in shown and row.series in names[:MAX_SERIES]:
            # The marker shows where the window ends: faster configurations end further left.
            shown[row.batch_size].plot(
                seconds,
                losses,
                label=f"{one_line(row.series)} ×{row.group_size}",
                markevery=[len(seconds) - 1],
                **styles[row.series],
            )
    for axis in shown.values():
        axis.set_ylabel("training loss (mean over ranks)")
        axis.set_xlabel("timed window (s)")
    remark = "smoothed loss of the repetition of median length"
    remarks = [remark, *first_of(MAX_SERIES, len(names), "series"), *left_out]
    return captioned(figure, analysis, [], remarks)


def _batch_panels(rows: Iterable[Row]) -> tuple[Figure, dict[int | None, Axes], list[str]]:
    """A panel for each batch size, below its title; a size that a script chooses has none. If there
    are more sizes than panels, the remark that says so."""
    sizes = sorted({row.batch_size for row in rows}, key=lambda size: size or 0)
    shown = sizes[:MAX_PANELS]
    titles = [f"batch size {size:,}" if size else "" for size in shown]
    figure, axes = panels(titles, [CURVE_INCHES] * len(shown), sharey=True)
    remarks = first_of(len(shown), len(sizes), "batch sizes")
    return figure, dict(zip(shown, axes, strict=True)), remarks


def bandwidth(collectives: Collectives) -> Figure:
    """One panel per collective and group size, one line per backend."""
    lines: dict[CollectiveSpec, dict[int, Estimate]] = {}
    for row in collectives.rows:
        if row.nbytes is not None and row.bus_bytes_per_second is not None:
            lines.setdefault(row.spec, {})[row.nbytes] = row.bus_bytes_per_second
    groups: dict[str, list[CollectiveSpec]] = {}
    for spec, line in lines.items():
        if len(line) > 1:
            groups.setdefault(f"{spec.collective} ×{spec.group_size}", []).append(spec)
    if not groups:
        raise NothingToDraw(NO_COLLECTIVES)
    titles = [*groups][:MAX_PANELS]
    figure, axes = panels(titles, [CURVE_INCHES] * len(titles), sharey=True)
    drawn = [spec for title in titles for spec in groups[title]]
    for axis, title in zip(axes, titles, strict=True):
        sizes = sorted({size for spec in groups[title] for size in lines[spec]})
        names = [units.bytes_binary(size) for size in sizes]
        for spec in groups[title]:
            points = [(sizes.index(size), value) for size, value in lines[spec].items()]
            look = {"label": one_line(spec.backend), "color": INK, **line_pattern(spec.backend)}
            draw_points(axis, points, **look)
        axis.set_yscale("log")
        axis.yaxis.set_major_formatter(EngFormatter(unit="B/s"))
        axis.yaxis.set_minor_locator(NullLocator())
        axis.set_ylabel("bus bandwidth")
        category_axis(axis, names, "message size")
    shown_values = [value for spec in drawn for value in lines[spec].values()]
    remarks = first_of(len(titles), len(groups), "panels")
    return captioned(figure, collectives, shown_values, remarks)


def category_axis(axes: Axes, names: Sequence[str], label: str) -> None:
    """An axis of sizes: each is a category, and at most `MAX_LABELS` are labeled."""
    step = math.ceil(len(names) / MAX_LABELS)
    axes.set_xticks(range(0, len(names), step), names[::step])
    axes.set_xlim(-0.5, len(names) - 0.5)
    axes.set_xlabel(label)

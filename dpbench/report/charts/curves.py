"""Curves, a panel per batch size or collective: speeds and bandwidth with intervals, and losses."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, Literal, TypeVar

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
    INK,
    MAX_PANELS,
    MUTED,
    backend_styles,
    captioned,
    draw_points,
    first_of,
    series_styles,
)
from dpbench.report.charts.kinds import NO_COLLECTIVES, NothingToDraw
from dpbench.specs.collective import CollectiveSpec
from dpbench.specs.traits import SINGLE

MAX_SERIES = 8
MAX_LABELS = 6
Group = TypeVar("Group")
GROUP_SPREAD, BAND_HALF_WIDTH, BARS_WIDTH = 0.36, 0.26, 0.84
"""Width of a group size over which the points of series stand side by side; half the width of its
band; width over which bars stand side by side."""
HATCHES = {"-": "", "--": "//", ":": "..", "-.": "xx"}
"""Hatches of bars where curves have these dashes."""
Curve = list[tuple[Row, Estimate]]
"""The rows of a series with the values that are drawn."""


def growth(analysis: Analysis, name: Literal["throughput", "speedup", "efficiency"]) -> Figure:
    """Curves with intervals, or bars where there are two group sizes, and in gray linear scaling.
    `single`, whose speedup and efficiency are 1 by definition, has a curve of throughput alone."""
    has_bars = len({row.group_size for row in analysis.rows}) == 2
    curves, noisy = _curves(analysis.rows, name, has_starts=not has_bars)
    left_out = [f"{units.counted(noisy, 'value')} left out: too noisy"] if noisy else []
    remarks = [*left_out, *first_of(MAX_SERIES, len(curves), "series")]
    curves = dict(islice(curves.items(), MAX_SERIES))
    points = [point for curve in curves.values() for point in curve]
    rows = [row for row, _ in points]
    sizes = sorted({row.group_size for row in rows})
    if not points or (len(sizes) < 2 and not has_bars):
        why = f" ({left_out[0]})" if left_out else ""
        raise NothingToDraw(f"no {name} at two group sizes or more{why}")
    figure, shown, fewer_panels = _batch_panels(rows)
    ones = dict.fromkeys((row.batch_size for row in rows), 1.0)
    starts = _linear_starts(analysis.rows) if name == "throughput" else ones
    if len(curves) > 1 and not has_bars:
        remarks.insert(0, "gray bands: one group size each, its points side by side")
    if name != "throughput":
        remarks.insert(0, relative_to(rows))
    labels = {
        "throughput": f"throughput ({points[0][1].unit})",
        "efficiency": "efficiency (% of linear scaling)",
    }
    for axis, batch_size in shown:
        _draw_series(axis, curves, batch_size, sizes, has_bars=has_bars)
        look: dict[str, Any] = {"label": "linear", "color": MUTED, "linewidth": 1.0, "zorder": 1}
        if name == "efficiency":
            axis.axhline(1, **look)
        elif start := starts.get(batch_size):
            axis.plot(range(len(sizes)), [start * size for size in sizes], **look)
        category_axis(axis, [f"{size:,}" for size in sizes], "group size (replicas)")
        percents = PercentFormatter(1, decimals=0, symbol="")
        axis.yaxis.set_major_formatter(percents if name == "efficiency" else "{x:,.10g}")
        axis.set_ylabel(labels.get(name, name))
    for axis, _ in shown:
        axis.set_ylim(bottom=0)  # only now: a limit stops the common axis from growing
    drawn = {batch_size for _, batch_size in shown}
    estimates = [estimate for row, estimate in points if row.batch_size in drawn]
    return captioned(figure, analysis, estimates, [*remarks, *fewer_panels])


throughput = partial(growth, name="throughput")
speedup = partial(growth, name="speedup")
efficiency = partial(growth, name="efficiency")


def _curves(rows: Sequence[Row], name: str, *, has_starts: bool) -> tuple[dict[str, Curve], int]:
    """The curve of each series, and the number of values that are too noisy to be drawn. If it
    `has_starts`, a series that was not measured at group size 1 starts at `single`, which has a
    curve of throughput alone."""
    curves: dict[str, Curve] = {}
    noisy = 0
    for row in rows:
        value: Estimate | None = getattr(row, name)
        if value is None or (name != "throughput" and row.implementation == SINGLE):
            continue
        if value.is_too_noisy:
            noisy += 1
        else:
            curves.setdefault(row.series, []).append((row, value))
    for curve in curves.values() if has_starts else ():
        if all(row.group_size > 1 for row, _ in curve):
            references = dict.fromkeys(row.reference for row, _ in curve if row.reference)
            curve[:0] = [
                (row, value)
                for row in references
                if (value := getattr(row, name)) and not value.is_too_noisy
            ]
    return curves, noisy


def _linear_starts(rows: Sequence[Row]) -> dict[int | None, float]:
    """Where linear scaling of throughput starts: at `single`, or in a sweep without it at the
    fastest implementation at group size 1; by batch size."""
    has_single = any(row.implementation == SINGLE for row in rows)
    starts: dict[int | None, float] = {}
    for row in rows:
        is_start = row.implementation == SINGLE if has_single else row.group_size == 1
        if is_start and row.throughput and not row.throughput.is_too_noisy:
            highest = starts.get(row.batch_size, 0.0)
            starts[row.batch_size] = max(row.throughput.value, highest)
    return starts


def _draw_series(
    axis: Axes,
    curves: Mapping[str, Curve],
    batch_size: int | None,
    sizes: Sequence[int],
    *,
    has_bars: bool,
) -> None:
    """The values of a batch size, those of one group size side by side: as bars, or as points on a
    band."""
    styles = series_styles(curve[-1][0] for curve in curves.values())
    width = BARS_WIDTH if has_bars else GROUP_SPREAD
    for place, (series, curve) in enumerate(curves.items()):
        shift = width * ((place + 0.5) / len(curves) - 0.5)
        marks = [
            (sizes.index(row.group_size) + shift, value)
            for row, value in curve
            if row.batch_size == batch_size
        ]
        look = styles[series]
        label = one_line(series)
        if has_bars:
            places = [at for at, _ in marks]
            heights = [value.value for _, value in marks]
            fill = {"color": look["color"], "hatch": HATCHES[look["linestyle"]]}
            bar_width = 0.9 * width / len(curves)
            axis.bar(places, heights, bar_width, edgecolor="white", label=label, **fill)
            look = {"color": INK, "linestyle": "none"}
            label = "_"  # which no legend has
        elif len({row.group_size for row, _ in curve}) == 1:
            look = {**look, "linestyle": "none"}  # nor has its key in the legend one
        if marks:
            draw_points(axis, marks, label=label, **look)
    for place in range(len(sizes)) if len(curves) > 1 and not has_bars else ():
        ends = place - BAND_HALF_WIDTH, place + BAND_HALF_WIDTH
        axis.axvspan(*ends, color=MUTED, alpha=0.1, linewidth=0, zorder=0)
    axis.grid(len(curves) == 1, axis="x")


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
    styles = series_styles(row for row, _ in lines)
    drawn = [*styles][:MAX_SERIES]
    figure, shown, left_out = _batch_panels(row for row, _ in lines)
    for axis, batch_size in shown:
        for row, (seconds, losses) in lines:
            if row.batch_size == batch_size and row.series in drawn:
                # The marker shows where the window ends: faster configurations end further left.
                axis.plot(
                    seconds,
                    losses,
                    label=f"{one_line(row.series)} ×{row.group_size}",
                    markevery=[len(seconds) - 1],
                    **styles[row.series],
                )
        axis.set_ylabel("training loss (mean over ranks)")
        axis.set_xlabel("timed window (s)")
    remark = "smoothed loss of the repetition of median length"
    remarks = [remark, *first_of(MAX_SERIES, len(styles), "series"), *left_out]
    return captioned(figure, analysis, [], remarks)


def _batch_panels(
    rows: Iterable[Row],
) -> tuple[Figure, list[tuple[Axes, int | None]], list[str]]:
    """A panel for each batch size, below its title; a size that a script chooses has none. See
    `panels`."""
    sizes = sorted({row.batch_size for row in rows}, key=lambda size: size or 0)
    figure, shown, left_out = panels(sizes, "batch sizes")
    for axis, size in shown:
        axis.set_title(f"batch size {size:,}" if size else "")
    return figure, shown, left_out


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
    figure, shown, remarks = panels([*groups.items()], "panels")
    drawn = [spec for group in groups.values() for spec in group]
    styles = backend_styles(spec.backend for spec in drawn)
    for axis, (title, group) in shown:
        sizes = sorted({size for spec in group for size in lines[spec]})
        names = [units.bytes_binary(size) for size in sizes]
        for spec in group:
            points = [(sizes.index(size), value) for size, value in lines[spec].items()]
            draw_points(axis, points, label=one_line(spec.backend), **styles[spec.backend])
        axis.set_yscale("log")
        axis.yaxis.set_major_formatter(EngFormatter(unit="B/s"))
        axis.yaxis.set_minor_locator(NullLocator())
        axis.set_ylabel("bus bandwidth")
        axis.set_title(title)
        category_axis(axis, names, "message size")
    shown_values = [value for spec in drawn for value in lines[spec].values()]
    return captioned(figure, collectives, shown_values, remarks)


def panels(
    groups: Sequence[Group], noun: str
) -> tuple[Figure, list[tuple[Axes, Group]], list[str]]:
    """Panels of one scale below each other, each of which can be read without the others, so that
    a chart is as wide as a phone.

    Returns the figure, its panels with the groups that they show, and, if there are more groups
    than panels, the remark that says so.
    """
    shown = groups[:MAX_PANELS]
    size = 5.2, 2.4 * len(shown) + 0.7
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(len(shown), 1, squeeze=False, sharey=True)
    axes = [line[0] for line in grid]
    return figure, [*zip(axes, shown, strict=True)], first_of(len(shown), len(groups), noun)


def category_axis(axes: Axes, names: Sequence[str], label: str) -> None:
    """An axis of sizes: each is a category, and at most `MAX_LABELS` are labeled."""
    step = math.ceil(len(names) / MAX_LABELS)
    axes.set_xticks(range(0, len(names), step), names[::step])
    axes.set_xlim(-0.5, len(names) - 0.5)
    axes.set_xlabel(label)

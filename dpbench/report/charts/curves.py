"""Lines with interval bars in small multiples: what charts along a number have in common."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullLocator

from dpbench.analysis.configuration import ConfigurationSummary
from dpbench.analysis.estimate import Estimate
from dpbench.report.cells import one_line
from dpbench.report.charts.end_labels import Label
from dpbench.report.charts.style import SeriesStyle, plain_number, series_styles

MOST_PANELS = 6
MOST_SERIES = 10
MOST_TICKS = 9
LINEAR_UP_TO = 8
"""Group sizes up to this one stand on linear axes, more on logarithmic ones."""
APART, FILLED = 0.03, 0.4
"""How far points of the same x are moved, so that none hides another: as a share of the panel's
width, and all of them together of the distance to the next x, at the most."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """One implementation on one backend, along the x axis."""

    label: str
    style: SeriesStyle
    xs: tuple[int, ...]
    ys: tuple[Estimate, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Panel:
    """One value of the parameter that tells the small multiples apart."""

    parameter: int | None
    curves: tuple[Curve, ...]


def chosen(values: Sequence[int], limit: int = MOST_PANELS) -> list[int]:
    """At most `limit` of the values, evenly spread, with the first and the last."""
    ordered = sorted(set(values))
    if len(ordered) <= limit:
        return ordered
    steps = [round(i * (len(ordered) - 1) / (limit - 1)) for i in range(limit)]
    return [ordered[step] for step in steps]


def make_panels(
    rows: Sequence[ConfigurationSummary],
    *,
    parameter: Callable[[ConfigurationSummary], int | None],
    parameter_name: str,
    x: Callable[[ConfigurationSummary], int | None],
    y: Callable[[ConfigurationSummary], Estimate | None],
) -> tuple[list[Panel], list[str]]:
    """Sorts rows into panels and curves; also says what was left out to stay legible."""
    drawable = [row for row in rows if y(row) is not None and x(row) is not None]
    values = sorted({value for row in drawable if (value := parameter(row)) is not None})
    shown: list[int | None] = [*chosen(values)] if values else [None]
    remarks = []
    if len(shown) < len(values):
        listed = ", ".join(map(str, shown))
        remarks.append(f"{parameter_name} {listed} of {len(values)} measured")
    names = list(dict.fromkeys((row.implementation, row.backend) for row in drawable))
    if len(names) > MOST_SERIES:
        remarks.append(f"first {MOST_SERIES} of {len(names)} series")
    styles = series_styles(names[:MOST_SERIES])
    look_alikes = 0
    result = []
    for value in shown:
        here = [row for row in drawable if parameter(row) == value]
        curves = []
        for name in names[:MOST_SERIES]:
            own = [row for row in here if (row.implementation, row.backend) == name]
            points: dict[int, ConfigurationSummary] = {}
            for row in own:
                points.setdefault(x(row) or 0, row)
            look_alikes += len(own) - len(points)
            if own:
                curves.append(_curve(styles[f"{name[0]} {name[1]}"], points, y))
        result.append(Panel(parameter=value, curves=tuple(curves)))
    if look_alikes:
        remarks.append(f"{look_alikes} rows that differ in something else left out")
    return [panel for panel in result if panel.curves], remarks


def estimates(panels: Sequence[Panel]) -> list[Estimate]:
    return [y for panel in panels for curve in panel.curves for y in curve.ys]


def draw(axes: Axes, curves: Sequence[Curve], *, log: bool = False) -> list[Label]:
    """Lines, markers and interval bars; gives their names where they end, for `label_lines`."""
    step = _step(curves, log=log)
    ends = []
    for place, curve in enumerate(curves):
        shift = (place - (len(curves) - 1) / 2) * step
        at = [x * math.exp(shift) if log else x + shift for x in curve.xs]
        values = [y.value for y in curve.ys]
        intervals = [y.interval or (y.value, y.value) for y in curve.ys]
        axes.errorbar(
            at,
            values,
            yerr=[
                [max(0.0, y - low) for y, (low, _) in zip(values, intervals, strict=True)],
                [max(0.0, high - y) for y, (_, high) in zip(values, intervals, strict=True)],
            ],
            elinewidth=1.0,
            label=curve.label,
            **curve.style.marks,
        )
        ends.append((at[-1], values[-1], curve.label, curve.style.color))
    return ends


def number_axis(axes: Axes, ticks: Sequence[int], label: str, *, log: bool) -> None:
    """An x axis with ticks at measured values only."""
    if log:
        axes.set_xscale("log", base=2)
    axes.set_xticks(_apart(sorted(set(ticks)), log=log))
    axes.xaxis.set_major_formatter(FuncFormatter(plain_number))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(label)


def first_in_row(axes: Axes) -> bool:
    """Where the label of a y axis stands that a row of panels has in common."""
    place = axes.get_subplotspec()
    return place is None or place.is_first_col()


def _step(curves: Sequence[Curve], *, log: bool) -> float:
    """How far neighbours of the same x stand apart; of its logarithm if `log`."""
    xs = {x for curve in curves for x in curve.xs}
    places = sorted(math.log(x) if log else x for x in xs)
    nearest = min((b - a for a, b in pairwise(places)), default=1.0)
    width = places[-1] - places[0] or 1.0
    return min(APART * width, FILLED * nearest / len(curves))


def _apart(ticks: Sequence[int], *, log: bool) -> list[int]:
    """The ticks that have room beside each other, the last one always."""
    places = [math.log(tick) if log else tick for tick in ticks]
    nearest = (places[-1] - places[0]) / MOST_TICKS
    kept, last = [ticks[-1]], places[-1]
    for tick, place in zip(reversed(ticks), reversed(places), strict=True):
        if last - place > nearest:
            kept, last = [tick, *kept], place
    return kept


def _curve(
    style: SeriesStyle,
    points: dict[int, ConfigurationSummary],
    y: Callable[[ConfigurationSummary], Estimate | None],
) -> Curve:
    ordered = sorted(points)
    found = [y(points[x]) for x in ordered]
    return Curve(
        label=one_line(points[ordered[0]].series),
        style=style,
        xs=tuple(ordered),
        ys=tuple(estimate for estimate in found if estimate is not None),
    )

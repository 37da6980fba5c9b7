"""Lines with interval bars in small multiples: what three of the four charts have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullLocator

from dpbench.analysis.configuration import ConfigurationSummary
from dpbench.analysis.estimate import Estimate
from dpbench.report.charts.style import SeriesStyle, plain_number, series_styles

MOST_PANELS = 6
MOST_SERIES = 10
LINEAR_UP_TO = 8
"""Group sizes up to this one stand on linear axes, more on logarithmic ones."""


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


def draw(axes: Axes, curves: Sequence[Curve], *, scale: float = 1.0, log: bool = False) -> None:
    """Lines, markers and interval bars, moved apart a little so that none hides another."""
    xs = [x for curve in curves for x in curve.xs]
    span = max(xs) - min(xs)
    for place, curve in enumerate(curves):
        shift = (place - (len(curves) - 1) / 2) * 0.012
        at = [x * 2 ** (3 * shift) if log else x + shift * span for x in curve.xs]
        values = [y.value * scale for y in curve.ys]
        ends = [y.interval or (y.value, y.value) for y in curve.ys]
        axes.errorbar(
            at,
            values,
            yerr=[
                [max(0.0, v - low * scale) for v, (low, _) in zip(values, ends, strict=True)],
                [max(0.0, high * scale - v) for v, (_, high) in zip(values, ends, strict=True)],
            ],
            color=curve.style.color,
            linestyle=curve.style.linestyle,
            marker=curve.style.marker,
            elinewidth=1.0,
            capsize=2.5,
        )


def number_axis(axes: Axes, ticks: Sequence[int], label: str, *, log: bool) -> None:
    """An x axis with a tick at every measured value."""
    if log:
        axes.set_xscale("log", base=2)
    axes.set_xticks(chosen(ticks, 9))
    axes.xaxis.set_major_formatter(FuncFormatter(plain_number))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(label)


def legend(figure: Figure, panels: Sequence[Panel], extra: Sequence[Line2D] = ()) -> None:
    """One key for all panels, at the right: the same order as in the table."""
    seen: dict[str, Line2D] = {}
    for panel in panels:
        for curve in panel.curves:
            style = curve.style
            seen.setdefault(
                curve.label,
                Line2D(
                    [],
                    [],
                    color=style.color,
                    linestyle=style.linestyle,
                    marker=style.marker,
                    label=curve.label,
                ),
            )
    figure.legend(handles=[*seen.values(), *extra], loc="outside right upper", handlelength=3.2)


def _curve(
    style: SeriesStyle,
    points: dict[int, ConfigurationSummary],
    y: Callable[[ConfigurationSummary], Estimate | None],
) -> Curve:
    ordered = sorted(points)
    first = points[ordered[0]]
    found = [y(points[x]) for x in ordered]
    return Curve(
        label=first.series,
        style=style,
        xs=tuple(ordered),
        ys=tuple(estimate for estimate in found if estimate is not None),
    )

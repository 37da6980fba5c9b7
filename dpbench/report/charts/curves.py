"""Lines with interval bars in small multiples: what charts along a number have in common.

Linear y axes end where one wide interval does not press all lines to the ground. Lines have their
names at the right of a panel, each level with the end of its line, none on another. Where lines end
is known only when a figure is laid out: names are moved apart while it is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backend_bases import RendererBase
from matplotlib.lines import Line2D
from matplotlib.text import Annotation
from matplotlib.ticker import FuncFormatter, NullLocator
from matplotlib.transforms import IdentityTransform

from dpbench.analysis.configuration import ConfigurationSummary
from dpbench.analysis.estimate import Estimate
from dpbench.messages import one_line
from dpbench.report.charts.style import INK, MUTED, SeriesStyle, plain_number, series_styles

POINTS, POINTS_PER_INCH = 7.5, 72
LINE_SPACING = 1.2
LEAD, GAP = 14.0, 2.5
"""Points from the edge of the panel to a name, and between it and the end of its leader."""
Dotted = tuple[float, tuple[float, float]]
DOTTED: Dotted = (0, (1, 2.5))
"""Inside a panel, where a line that runs on would look like data."""

Label = tuple[float, float, str, str]
"""x and y of the end of a line, its name, its colour."""


def label_lines(axes: Axes, labels: Sequence[Label]) -> None:
    """Names lines beside the panel, with a leader from where each ends.

    It is dotted and grey up to the edge, where it takes the colour of its line.
    """
    axes.add_artist(_EndLabels(axes, labels))


def spread_heights(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Heights in the same order, `gap` apart, within the limits, and near to those wanted.

    The least squares of all moves: neighbours that collide stand evenly around their mean (isotonic
    regression by pooling adjacent violators). What does not fit goes beyond `low`.
    """
    if not wanted:
        return []
    order = sorted(range(len(wanted)), key=lambda place: wanted[place])
    blocks: list[tuple[float, int]] = []  # mean of the heights less their gaps, and how many
    for rank, place in enumerate(order):
        mean, count = wanted[place] - rank * gap, 1
        while blocks and blocks[-1][0] > mean:
            before, many = blocks.pop()
            mean = (before * many + mean * count) / (many + count)
            count += many
        blocks.append((mean, count))
    top = high - (len(wanted) - 1) * gap
    means = [min(max(mean, low), top) for mean, count in blocks for _ in range(count)]
    heights = [0.0] * len(wanted)
    for rank, place in enumerate(order):
        heights[place] = means[rank] + rank * gap
    return heights


class _EndLabels(Artist):
    """Draws nothing itself: puts the names and their leaders, drawn after it, into place."""

    def __init__(self, axes: Axes, labels: Sequence[Label]) -> None:
        super().__init__()
        self.set_zorder(-1)
        self.set_in_layout(False)
        self._panel = axes
        self._ends = [(x, y) for x, y, _, _ in labels]
        self._names = [_name(axes, name) for _, _, name, _ in labels]
        self._inside = [_leader(axes, MUTED, DOTTED) for _ in labels]
        self._outside = [_leader(axes, colour) for _, _, _, colour in labels]

    def draw(self, renderer: RendererBase) -> None:
        box, point = self._panel.bbox, self._panel.figure.dpi / POINTS_PER_INCH
        ends = [self._panel.transData.transform(end) for end in self._ends]
        gap = LINE_SPACING * POINTS * point
        heights = spread_heights([y for _, y in ends], gap, box.y0, box.y1)
        stop = box.x1 + (LEAD - GAP) * point
        for (x, y), height, name, inside, outside in zip(
            ends, heights, self._names, self._inside, self._outside, strict=True
        ):
            name.xy = (1, (height - box.y0) / box.height)
            inside.set_data([x, box.x1], [y, y])
            outside.set_data([box.x1, stop], [y, height])


def _name(axes: Axes, words: str) -> Annotation:
    return axes.annotate(
        words,
        (1, 0.5),
        xycoords="axes fraction",
        xytext=(LEAD, 0),
        textcoords="offset points",
        va="center",
        fontsize=POINTS,
        color=INK,
        annotation_clip=False,
    )


def _leader(axes: Axes, colour: str, style: Dotted | Literal["-"] = "-") -> Line2D:
    everywhere = IdentityTransform()
    line = Line2D([], [], color=colour, linewidth=0.7, clip_on=False, transform=everywhere)
    line.set_linestyle(style)
    line.set_in_layout(False)
    axes.add_artist(line)
    return line


MOST_PANELS = 6
MOST_SERIES = 10
LETTERS = 30
"""Room for ticks at the x axis of the narrowest panel."""
LINEAR_UP_TO = 8
"""Group sizes up to this one stand on linear axes, more on logarithmic ones."""
APART, FILLED = 0.03, 0.4
"""How far points of the same x are moved, so that none hides another: as a share of the panel's
width, and all of them together of the distance to the next x, at the most."""


FARTHEST_END = 1.6
"""Times the highest value: an axis ends there even if intervals go on."""
MARGIN = 1.05
ALIKE = 4.0
"""Panels whose highest values differ by more have y axes of their own."""
CUT_OFF = "intervals that leave the panel are cut off"


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

    title: str
    """Which value, in words; empty where no row has one."""
    curves: tuple[Curve, ...]


def chosen_sizes(values: Sequence[int], limit: int = MOST_PANELS) -> list[int]:
    """Chooses at most `limit` sizes, first and last included: powers of two if there are enough."""
    ordered = sorted(set(values))
    if len(ordered) <= limit:
        return ordered
    powers = {value for value in ordered if value.bit_count() == 1}
    regular = sorted(powers | {ordered[0], ordered[-1]})
    return evenly_spread(regular if 2 * len(powers) >= limit else ordered, limit)


def evenly_spread(ordered: Sequence[int], limit: int) -> list[int]:
    """Chooses at most `limit` of the values, evenly spread, with the first and the last."""
    if len(ordered) <= limit:
        return [*ordered]
    steps = [round(i * (len(ordered) - 1) / (limit - 1)) for i in range(limit)]
    return [ordered[step] for step in steps]


def make_panels(
    rows: Sequence[ConfigurationSummary], y: Callable[[ConfigurationSummary], Estimate | None]
) -> tuple[list[Panel], list[str]]:
    """Sorts rows into one panel per batch size and curves along group sizes; also says what was
    left out to stay legible.

    Rows without a batch size are a panel of their own, the last one.
    """
    drawable = [row for row in rows if y(row) is not None]
    values = sorted({row.batch_size for row in drawable if row.batch_size is not None})
    shown: list[int | None] = [*chosen_sizes(values)]
    remarks = []
    if len(shown) < len(values):
        listed = ", ".join(map(str, shown))
        remarks.append(f"batch sizes {listed} of {len(values)} measured")
    if any(row.batch_size is None for row in drawable):
        shown.append(None)
    names = list(dict.fromkeys((row.implementation, row.backend) for row in drawable))
    if len(names) > MOST_SERIES:
        remarks.append(f"first {MOST_SERIES} of {len(names)} series")
    styles = series_styles(names[:MOST_SERIES])
    look_alikes = 0
    result = []
    for value in shown:
        here = [row for row in drawable if row.batch_size == value]
        curves = []
        for name in names[:MOST_SERIES]:
            own = [row for row in here if (row.implementation, row.backend) == name]
            points: dict[int, ConfigurationSummary] = {}
            for row in own:
                points.setdefault(row.group_size, row)
            look_alikes += len(own) - len(points)
            if own:
                curves.append(_curve(styles[name], points, y))
        title = f"batch size {'not known' if value is None else f'{value:,}'}"
        result.append(Panel(title=title if values else "", curves=tuple(curves)))
    if look_alikes:
        remarks.append(f"{look_alikes} rows that differ in something else left out")
    return [panel for panel in result if panel.curves], remarks


def all_estimates(panels: Sequence[Panel]) -> list[Estimate]:
    return [y for panel in panels for curve in panel.curves for y in curve.ys]


def draw_curves(axes: Axes, curves: Sequence[Curve], *, log: bool = False) -> list[Label]:
    """Lines, markers and interval bars; gives their names where they end, for `label_lines`."""
    step = _step(curves, log=log)
    ends = []
    for place, curve in enumerate(curves):
        shift = (place - (len(curves) - 1) / 2) * step
        at = [x * math.exp(shift) if log else x + shift for x in curve.xs]
        values = [y.value for y in curve.ys]
        axes.errorbar(
            at,
            values,
            yerr=[*zip(*(y.sides for y in curve.ys), strict=True)],
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
    """Tells whether the panel is the first in its row and has the y-axis label of the row."""
    place = axes.get_subplotspec()
    return place is None or place.is_first_col()


def _step(curves: Sequence[Curve], *, log: bool) -> float:
    """Distance between neighbours of the same x, on a logarithmic axis in logarithms."""
    xs = {x for curve in curves for x in curve.xs}
    places = sorted(math.log(x) if log else x for x in xs)
    nearest = min((b - a for a, b in pairwise(places)), default=1.0)
    width = places[-1] - places[0] or 1.0
    return min(APART * width, FILLED * nearest / len(curves))


def _apart(ticks: Sequence[int], *, log: bool) -> list[int]:
    """The ticks that have room beside each other, the last one always."""
    places = [math.log(tick) if log else tick for tick in ticks]
    share = (len(plain_number(ticks[-1])) + 1) / LETTERS
    nearest = share * (places[-1] - places[0]) * (1 - 1e-9)
    kept, last = [ticks[-1]], places[-1]
    for tick, place in list(zip(ticks, places, strict=True))[-2::-1]:
        if last - place >= nearest:
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


def are_alike(found: Sequence[Panel]) -> bool:
    """Tells whether panels with one y axis are all still legible."""
    highest = [highest_value([panel]) for panel in found]
    return max(highest) <= ALIKE * min(highest)


def highest_value(found: Sequence[Panel]) -> float:
    return max(y.value for y in all_estimates(found))


def upper_limit(found: Sequence[Panel], beside: float = 0.0) -> float:
    """Upper end of the axis of these panels; `beside` is another value that must fit."""
    end = min(max(map(_end, all_estimates(found))), FARTHEST_END * highest_value(found))
    return MARGIN * max(end, beside)


def are_cut(found: Sequence[Panel], top: float) -> bool:
    return any(_end(y) > top for y in all_estimates(found))


def _end(estimate: Estimate) -> float:
    return estimate.value if estimate.high is None else estimate.high

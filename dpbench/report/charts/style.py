"""How all charts look: colors, panels, axes, captions; dpbench.mplstyle has fonts and axes.

No color means two things: implementations have the colors of Okabe and Ito, backends (where they
are the series) and phases of a step have others. Dash and marker show the backend, so that no chart
depends on color alone.
"""

from __future__ import annotations

import math
import textwrap
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from dpbench import units
from dpbench.analysis.analyze import Analysis
from dpbench.analysis.estimate import CONFIDENCE, Estimate
from dpbench.analysis.rows import Row
from dpbench.messages import one_line
from dpbench.records.environment import environment_line
from dpbench.report.formatting import time_unit
from dpbench.specs.traits import BACKENDS

INK, MUTED = "#222222", "#767676"
"""Colors of text and the plain module; of marks behind the data."""
IMPLEMENTATION_COLORS = {
    "ddp": "#0072B2",
    "torch-ddp": "#D55E00",
    "torch-ddp-static": "#CC79A7",
    "dp": "#56B4E9",
    "torch-dp": "#E69F00",
    "independent": "#009E73",
    "single": INK,
}
OTHER_COLORS = ("#882255", "#6A51A3", "#8C6D31", "#637939", "#843C39")
"""Colors of implementations without one of their own, in their order."""
BACKEND_COLORS = {
    "gloo": "#332288",
    "shm": "#AA4499",
    "nccl": "#117733",
    "threads": "#999933",
    "nccl-legacy": "#44AA99",
    "nccl2": "#DDCC77",
}
"""Colors of backends in charts of collectives, which have no implementation."""
SeriesStyle = dict[str, Any]
"""Color, linestyle and marker of a series, as arguments for matplotlib's line functions."""
DASHES = ("-", "--", ":", "-.")
MARKERS = ("o", "s", "^", "D", "v", "P")
MAX_PANELS = 6
MAX_SERIES = 8
MAX_BARS = 14
MAX_LABELS = 6
STYLE_SHEET = Path(__file__).with_name("dpbench.mplstyle")
CHARACTERS_PER_INCH, LINE_INCHES, MARGIN_INCHES = 16.5, 0.15, 0.08
"""The width of a caption's characters, the height of its lines, and the margin around it."""
KEY_WIDTH_INCHES, KEY_HEIGHT_INCHES = 1.6, 0.19
"""Room of an entry of the legend."""
Group = TypeVar("Group")


class Drawn(NamedTuple):
    """A chart without its title and caption."""

    figure: Figure
    values: Sequence[Estimate]
    """Estimates whose intervals it shows."""
    remarks: Sequence[str]
    """What its caption says about it."""


@contextmanager
def house_style() -> Iterator[None]:
    """The style sheet, for everything that is drawn and saved inside; nothing outlives it."""
    with mpl.rc_context(fname=STYLE_SHEET), warnings.catch_warnings():
        # Letters of a name that the font lacks show as boxes, which says enough.
        warnings.filterwarnings("ignore", message="Glyph", category=UserWarning)
        yield


def series_styles(rows: Iterable[Row]) -> dict[str, SeriesStyle]:
    """The style of every `Row.series`: the implementation has the color, the backend the rest.

    The first label of an implementation has its color; further ones, such as "ddp(bf16)" beside
    "ddp", and implementations without a color take OTHER_COLORS.
    """
    series = {row.series: row for row in rows}
    free = cycle(OTHER_COLORS)
    colors: dict[str, str] = {}
    for row in series.values():
        label, color = row.implementation_label, IMPLEMENTATION_COLORS.get(row.implementation)
        if label not in colors:
            colors[label] = color if color and color not in colors.values() else next(free)
    marks = backend_marks([row.backend for row in series.values()])
    return {
        name: {"color": colors[row.implementation_label], **marks[row.backend]}
        for name, row in series.items()
    }


def backend_marks(backends: Iterable[str | None]) -> dict[str | None, SeriesStyle]:
    """Dash and marker of each backend; those that dpbench knows have the same in every chart."""
    places = enumerate(dict.fromkeys([*BACKENDS, *backends]))
    return {
        name: {
            "linestyle": DASHES[place % len(DASHES) if name else 0],
            "marker": MARKERS[place % len(MARKERS) if name else 0],
        }
        for place, name in places
    }


def panels(
    groups: Sequence[Group], noun: str
) -> tuple[Figure, list[tuple[Axes, Group]], list[str]]:
    """Small multiples of one scale, at most three in a row, each of which can be read without the
    others.

    Returns the figure, its panels with the groups that they show, and, if there are more groups
    than panels, the remark that says so.
    """
    shown = groups[:MAX_PANELS]
    columns = min(len(shown), 3)
    rows = math.ceil(len(shown) / columns)
    figure = _figure(5.2 if columns == 1 else 3.3 * columns, 2.7 * rows + 1.1)
    grid = figure.subplots(rows, columns, squeeze=False, sharey=True)
    axes = [axis for line in grid for axis in line]
    for axis in axes:
        axis.tick_params(labelleft=True)
    for unused in axes[len(shown) :]:
        unused.remove()
    return figure, [*zip(axes, shown, strict=False)], first_of(len(shown), len(groups), noun)


def first_of(drawn: int, total: int, noun: str) -> list[str]:
    """The remark that a chart has no room for all: "first 8 of 9 series"."""
    return [f"first {drawn} of {total:,} {noun}"] if drawn < total else []


def cases(rows: Iterable[Row]) -> list[list[Row]]:
    """Rows that ran at the same sizes; the largest groups first, then by batch size."""
    groups: dict[tuple[int, int], list[Row]] = {}
    for row in rows:
        groups.setdefault((-row.group_size, row.batch_size or 0), []).append(row)
    return [groups[key] for key in sorted(groups)]


def case_panels(
    rows: Collection[Row], bars: Callable[[Row], int] = lambda _: 1
) -> tuple[Figure, list[tuple[Axes, list[Row]]], list[str]]:
    """Panels below each other, one for each case, in which a row has so many horizontal bars.

    Returns the figure, its panels with the rows that they show, and, if not all rows have room, the
    remark that says so.
    """
    shown: list[list[Row]] = []
    room = MAX_BARS // max(map(bars, rows))
    for case in cases(rows)[:MAX_PANELS]:
        if shown and len(case) > room:
            break
        shown.append(case[:room])
        room -= len(case)
    heights = [sum(map(bars, case)) for case in shown]
    figure = _figure(5.2, 0.27 * sum(heights) + 0.8 * len(shown) + 0.8)
    grid = figure.subplots(len(shown), 1, squeeze=False, height_ratios=heights)
    axes: list[Axes] = [line[0] for line in grid]
    for axis, case, height in zip(axes, shown, heights, strict=True):
        batch = case[0].batch_size
        title = units.counted(case[0].group_size, "replica")
        axis.set_title(title if batch is None else f"{title}, batch size {batch:,}", pad=4)
        axis.grid(False, axis="y")
        axis.tick_params(axis="y", length=0)
        axis.spines["left"].set_visible(False)
        axis.set_ylim(height - 0.4, -0.6)
    remarks = first_of(sum(map(len, shown)), len(rows), "configurations")
    return figure, [*zip(axes, shown, strict=True)], remarks


def _figure(width: float, height: float) -> Figure:
    figure = Figure(figsize=(width, height), layout="constrained")
    spacing: Any = figure.get_layout_engine()
    spacing.set(w_pad=0.12, h_pad=0.08)
    return figure


def draw_points(
    axes: Axes,
    points: Sequence[tuple[float, Estimate]],
    *,
    along: Literal["x", "y"] = "y",
    **look: Any,
) -> None:
    """Draws places and values with their intervals along an axis."""
    places = [place for place, _ in points]
    values = [value.value for _, value in points]
    sides = [[value.sides[k] for _, value in points] for k in (0, 1)]
    xs, ys = (places, values) if along == "y" else (values, places)
    bars: dict[str, Any] = {f"{along}err": sides, "elinewidth": 1.0, **look}
    axes.errorbar(xs, ys, **bars)


def category_axis(axes: Axes, names: Sequence[str], label: str) -> None:
    """An axis of sizes: each is a category, and at most `MAX_LABELS` are labeled."""
    step = math.ceil(len(names) / MAX_LABELS)
    axes.set_xticks(range(0, len(names), step), names[::step])
    axes.set_xlim(-0.5, len(names) - 0.5)
    axes.set_xlabel(label)


def time_axis(axes: Axes, quantity: str) -> None:
    """A horizontal axis of seconds, in the unit that fits."""
    size, unit = time_unit(max(map(abs, axes.get_xlim())))
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / size:.4g}"))
    axes.set_xlabel(f"{quantity} ({unit})")


def write_beside(axes: Axes, place: float, text: str) -> None:
    """Writes a text to the right of the panel, where no bar can hide it."""
    axes.annotate(
        text,
        (1, place),
        xycoords=axes.get_yaxis_transform(),
        xytext=(8, 0),
        textcoords="offset points",
        va="center",
        annotation_clip=False,
        fontsize=8.5,
        color=INK,
    )


def with_caption(drawn: Drawn, title: str, analysis: Analysis) -> Figure:
    """Puts the title above, which names the work where there are several. Below are one legend for
    all panels, how the intervals came about, what is not shown, and the environment."""
    figure, values, remarks = drawn
    whole = f"{title}: {one_line(analysis.work)}" if analysis.work else title
    figure.suptitle(whole, x=0.01, ha="left", fontsize=12, fontweight="bold")
    environments = analysis.stored.environments if analysis.stored else {}
    words = []
    repeated = [value.sample_size for value in values if value.basis == "repetitions"]
    if repeated:
        level, count = units.percent(CONFIDENCE), units.span(repeated)
        words.append(f"bars: {level} interval over n = {count} repetitions")
    if single := sum(value.basis == "single value" for value in values):
        words.append(f"{units.counted(single, 'point')} without a bar: n = 1")
    parts = (*words, *remarks, environment_line(environments, {*environments}), analysis.name)
    text = textwrap.fill(
        " · ".join(map(one_line, parts)),
        int(figure.get_figwidth() * CHARACTERS_PER_INCH),
        break_on_hyphens=False,
    )
    handles: dict[str, Artist] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    columns = int(figure.get_figwidth() / KEY_WIDTH_INCHES)
    # The layout of the panels leaves room for both, whatever the number of their lines.
    written = (text.count("\n") + 1) * LINE_INCHES + 2 * MARGIN_INCHES
    below = written + math.ceil(len(handles) / columns) * KEY_HEIGHT_INCHES
    height = figure.get_figheight() + below
    figure.set_figheight(height)
    spacing: Any = figure.get_layout_engine()
    spacing.set(rect=(0, below / height, 1, 1 - below / height))
    look: dict[str, Any] = {"ncols": columns, "fontsize": 9, "borderaxespad": 0}
    if handles:
        anchor = (0.01, written / height)
        legend = figure.legend([*handles.values()], [*handles], loc=anchor, **look)
        legend.set_in_layout(False)
    place = MARGIN_INCHES / height
    caption = figure.supxlabel(text, x=0.01, y=place, ha="left", va="bottom", fontsize=8)
    caption.set(in_layout=False, color=MUTED)
    return figure

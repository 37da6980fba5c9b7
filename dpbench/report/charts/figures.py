"""How all charts look, with colors, axes and captions, and their files; dpbench.mplstyle has fonts.

Implementations have the colors of Okabe and Ito, phases of a step have pale ones. The pattern shows
the backend: dash and marker of a curve, hatch of a bar. Without a backend it is plain.
"""

from __future__ import annotations

import io
import math
import re
import textwrap
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpbench import units
from dpbench.analysis.analyze import Analysis
from dpbench.analysis.collectives import Collectives
from dpbench.analysis.estimate import CONFIDENCE, Estimate
from dpbench.analysis.formatting import percent, span
from dpbench.analysis.rows import Row
from dpbench.files import write_inside
from dpbench.messages import one_line
from dpbench.records.environment import environment_line
from dpbench.report.markup import visible
from dpbench.specs.traits import BACKENDS

INK, MUTED = "#222222", "#767676"
"""Colors of text, the plain module and charts without implementations; of marks behind the data."""
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
DASHES = ("-", "--", ":", "-.", (0, (3, 1, 1, 1, 1, 1)))
MARKERS = ("o", "s", "^", "D", "v")
HATCHES: dict[Any, str] = dict(zip(DASHES, ("", "//", "..", "xx", "--"), strict=True))
"""The pattern of each of BACKENDS, in their order: dash and marker of its curves, and the hatch of
bars that stand for curves of this dash. The first one is plain."""
MAX_PANELS = 6
PANEL_INCHES = 0.8
"""Height of the title and axis of a panel."""
STYLE_SHEET = Path(__file__).with_name("dpbench.mplstyle")
CHARACTERS_PER_INCH, LINE_INCHES, MARGIN_INCHES = 16.5, 0.15, 0.08
"""The width of a caption's characters, the height of its lines, and the margin around it."""
KEY_WIDTH_INCHES, KEY_HEIGHT_INCHES, LETTER_INCHES = 0.6, 0.19, 0.075
"""Room of an entry of the legend, and of each letter in it."""
PIXELS_PER_INCH = 130
_UNDATED: dict[str, dict[str, Any]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
"""Metadata without dates, so that equal data gives equal files."""


@contextmanager
def house_style() -> Iterator[None]:
    """The style sheet, for everything that is drawn and saved inside; nothing outlives it."""
    with mpl.rc_context(fname=STYLE_SHEET), warnings.catch_warnings():
        # Letters of a name that the font lacks show as boxes, which says enough.
        warnings.filterwarnings("ignore", message="Glyph", category=UserWarning)
        yield


def series_styles(rows: Iterable[Row]) -> dict[str, dict[str, Any]]:
    """Color, dash and marker of every `Row.series`, as arguments for matplotlib's line functions.

    The first label of an implementation has its color; further ones, such as "ddp(bf16)" beside
    "ddp", and implementations without a color take OTHER_COLORS. All charts of an analysis choose
    among all of its rows, and so agree.
    """
    free = cycle(OTHER_COLORS)
    colors: dict[str, str] = {}
    styles: dict[str, dict[str, Any]] = {}
    for row in rows:
        label = row.implementation_label
        color = IMPLEMENTATION_COLORS.get(row.implementation)
        if label not in colors:
            colors[label] = color if color and color not in colors.values() else next(free)
        styles[row.series] = {**line_pattern(row.backend), "color": colors[label]}
    return styles


def line_pattern(backend: str | None) -> dict[str, Any]:
    """Dash and marker of a backend, which are the same in every chart."""
    place = [*BACKENDS].index(backend) % len(DASHES) if backend in BACKENDS else 0
    return {"linestyle": DASHES[place], "marker": MARKERS[place]}


def panels(
    titles: Sequence[str], heights: Sequence[float], *, sharex: bool = False, sharey: bool = False
) -> tuple[Figure, list[Axes]]:
    """Panels of these heights in inches below each other, so that a chart is as wide as a phone."""
    size = 5.2, sum(heights) + PANEL_INCHES * (len(titles) + 1)
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.add_gridspec(len(titles), height_ratios=heights)
    axes: list[Axes] = [*grid.subplots(squeeze=False, sharex=sharex, sharey=sharey).flat]
    for axis, title in zip(axes, titles, strict=True):
        axis.set_title(title)
    return figure, axes


def first_of(drawn: int, total: int, noun: str) -> list[str]:
    """The remark that a chart has no room for all: "first 8 of 9 series"."""
    return [f"first {drawn} of {total:,} {noun}"] if drawn < total else []


def draw_points(axes: Axes, points: Sequence[tuple[float, Estimate]], **look: Any) -> None:
    """Draws places and values with their intervals."""
    places, values = zip(*points, strict=True)
    sides = [*zip(*(value.sides for value in values), strict=True)]
    look = {"elinewidth": 1.0, **look}
    axes.errorbar(places, [value.value for value in values], yerr=sides, **look)


def captioned(
    figure: Figure,
    results: Analysis | Collectives,
    estimates: Sequence[Estimate],
    remarks: Sequence[str],
) -> Figure:
    """Puts below the panels one legend for all, how the intervals of the `estimates` came about,
    `remarks`, and the environment."""
    words = list[str]()
    if repeated := [value.sample_size for value in estimates if value.basis == "repetitions"]:
        interval = f"{percent(CONFIDENCE)} interval over n = {span(repeated)} repetitions"
        words.append(f"error bars: {interval}")
    if single := sum(value.basis == "single value" for value in estimates):
        words.append(f"{units.counted(single, 'point')} without an error bar: n = 1")
    words += remarks
    if results.environments:
        words.append(environment_line(results.environments, {*results.environments}))
    text = textwrap.fill(
        " · ".join(map(one_line, (*words, results.name))),
        int(figure.get_figwidth() * CHARACTERS_PER_INCH),
        break_on_hyphens=False,
    )
    handles: dict[str, Artist] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    key_width = KEY_WIDTH_INCHES + LETTER_INCHES * max(map(len, handles), default=0)
    columns = max(1, int(figure.get_figwidth() / key_width))
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


def stem_of(name: str, work: str) -> str:
    """Name of a chart's file before its suffix: "speedup", "speedup-gpt"."""
    words = re.sub("[^A-Za-z0-9_.=]+", "-", work).strip("-.")
    return f"{name}-{words}" if words else name


def write_figure(figure: Figure, path: Path) -> Path:
    """Writes it in the format that the suffix names; within `house_style`. Raises FileError."""
    image = path.suffix[1:].lower()
    content = io.BytesIO()
    figure.savefig(content, format=image, dpi=PIXELS_PER_INCH, metadata=_UNDATED.get(image, {}))
    return write_inside(path, content.getvalue())


def inline_svg(figure: Figure, *, salt: str) -> str:
    """The figure as an element of a page, whose paper shows through; within `house_style`.

    The ids that it refers to are its own, as all charts of a page share one space of ids and each
    has another `salt`.
    """
    text = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with mpl.rc_context({"svg.hashsalt": salt}):
        figure.savefig(text, format="svg", transparent=True, metadata=nothing)
    return visible(text.getvalue()[text.getvalue().index("<svg") :])

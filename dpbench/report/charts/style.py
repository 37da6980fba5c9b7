"""How all charts look: colours, lines, panels, captions; dpbench.mplstyle has fonts and axes.

Colours are Okabe and Ito's, which people with any colour vision tell apart; the line style and
the marker say the backend, and lines are named where they end (`end_labels`), so that no chart
depends on colour alone. Pages replace exactly these colours by those of their theme: a chart uses
no other ones but white and none.

An axis has one unit, chosen from the data: ms rather than s where steps are short. Only what is
written at the axis changes: what is drawn stays in the unit of the table.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from dpbench.specs.traits import BACKENDS, IMPLEMENTATIONS

BLUE, VERMILION, GREEN, ORANGE = "#0072B2", "#D55E00", "#009E73", "#E69F00"
SKY, PURPLE = "#56B4E9", "#CC79A7"
WINE = "#882255"
"""Paul Tol's, beside those that have a colour of their own."""
INK, MUTED, GRID = "#222222", "#767676", "#E4E4E4"
"""Colours of text and the plain module; of marks behind the data; of grid lines."""
ON_COLOUR = "#111111"
"""Colour of text on a coloured area, which is the same on a light and on a dark page."""
PALETTE = (BLUE, VERMILION, GREEN, ORANGE, PURPLE, SKY)

IMPLEMENTATION_COLOURS = {
    "ddp": BLUE,
    "torch-ddp": VERMILION,
    "torch-ddp-static": PURPLE,
    "dp": SKY,
    "torch-dp": ORANGE,
    "independent": GREEN,
    "single": INK,
}
SeriesName = tuple[str, str | None]
"""Implementation and backend of a line."""
Dash = Literal["-", "--", ":", "-."]
DASHES: tuple[Dash, ...] = ("-", "--", ":", "-.")
MARKERS = ("o", "s", "^", "D", "v", "P")
BAND_OPACITY = 0.18
STYLE_SHEET = Path(__file__).with_name("dpbench.mplstyle")
TITLE, CAPTION = "chart-title", "chart-caption"
"""Which of a figure's texts they are: a page has them as its own text."""
CAPTION_POINTS = 7.5
CHARACTERS_PER_INCH = 15.5
"""Characters per inch of a caption."""


THOUSANDS, MILLIONS = 20e3, 2e6
"""Least value that is scaled: 15,000 images/s are read more easily than 15 k images/s."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SeriesStyle:
    """The look of one implementation on one backend, the same in all charts."""

    color: str
    linestyle: Dash
    marker: str
    hollow: bool = False
    """True if there are more series than colours."""

    @property
    def marks(self) -> dict[str, Any]:
        """Arguments for matplotlib's line functions."""
        return {
            "color": self.color,
            "linestyle": self.linestyle,
            "marker": self.marker,
            "markerfacecolor": "white" if self.hollow else self.color,
        }


@contextmanager
def house_style() -> Iterator[None]:
    """The style sheet, for everything that is drawn and saved inside; nothing outlives it."""
    with mpl.rc_context(fname=STYLE_SHEET):
        yield


def series_styles(series: Sequence[SeriesName]) -> dict[SeriesName, SeriesStyle]:
    """One style for every series.

    Colour tells the implementation; of a single one that is not registered, the backend.
    """
    implementations = list(dict.fromkeys(name for name, _ in series))
    backends = list(dict.fromkeys(backend for _, backend in series))
    alone = len(implementations) == 1 and implementations[0] not in IMPLEMENTATIONS
    styles = {}
    for implementation, backend in series:
        place = _place(backend, backends)
        turn = place if alone else _turn(implementation, implementations)
        colours = PALETTE if alone else _free(implementations)
        known = IMPLEMENTATION_COLOURS.get(implementation)
        styles[implementation, backend] = SeriesStyle(
            color=known or colours[turn % len(colours)],
            linestyle=DASHES[place % len(DASHES)],
            marker=MARKERS[place % len(MARKERS)],
            hollow=known is None and turn >= len(colours),
        )
    return styles


def panels(count: int, *, share_y: bool = False) -> tuple[Figure, list[Axes]]:
    """A figure of small multiples, at most three in a row."""
    columns = 2 if count == 4 else min(count, 3)
    rows = math.ceil(count / columns)
    width = 7.2 if columns == 1 else 4.1 * columns
    figure = Figure(figsize=(width, 3.3 * rows + 1.1), layout="constrained")
    spacing: Any = figure.get_layout_engine()
    spacing.set(w_pad=0.12, h_pad=0.08)
    grid = figure.subplots(rows, columns, squeeze=False, sharey=share_y)
    axes = [axis for line in grid for axis in line]
    for unused in axes[count:]:
        unused.remove()
    return figure, axes[:count]


def finish(figure: Figure, *, title: str, caption: str) -> Figure:
    """Puts the title above and the caption below, wrapped to the width of the figure."""
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold", gid=TITLE)
    characters = int(figure.get_figwidth() * CHARACTERS_PER_INCH)
    wrapped = textwrap.fill(caption, characters)
    look: dict[str, Any] = {"ha": "left", "fontsize": CAPTION_POINTS, "color": MUTED}
    figure.supxlabel(wrapped, x=0.01, gid=CAPTION, **look)
    return figure


def add_to_title(figure: Figure, words: str) -> None:
    """Writes "Speedup by group size: gpt" for "Speedup by group size"."""
    for text in figure.texts:
        if text.get_gid() == TITLE:
            text.set_text(f"{text.get_text()}: {words}")


def plain_number(value: float, _: object = None) -> str:
    """Writes axis numbers without exponents: 1,500 or 42.5 or 0.25."""
    if abs(value) < 10 and value != int(value):
        return f"{value:,.3g}"
    return f"{value:,.2f}".rstrip("0").rstrip(".")


def _place(backend: str | None, all_backends: Sequence[str | None]) -> int:
    """Index of a backend: the same for a registered backend in every chart; others come after."""
    if backend is None:
        return 0
    known = list(BACKENDS)
    others = [name for name in all_backends if name is not None and name not in BACKENDS]
    return [*known, *others].index(backend)


def _turn(name: str, all_names: Sequence[str]) -> int:
    """Number among the names without a colour of their own, such as local-sgd(4)."""
    others = [n for n in all_names if n not in IMPLEMENTATION_COLOURS]
    return others.index(name) if name in others else 0


def _free(names: Sequence[str]) -> list[str]:
    """The colours that none of the implementations has, wine first: it is never that of another,
    whatever else is drawn."""
    taken = {IMPLEMENTATION_COLOURS.get(name) for name in names}
    return [WINE, *(colour for colour in PALETTE if colour not in taken)]


@dataclass(frozen=True, kw_only=True, slots=True)
class AxisUnit:
    """Unit of an axis."""

    name: str
    size: float
    """The unit as a number of units of the data."""

    def written(self, value: float, _: object = None) -> str:
        return plain_number(round(value / self.size, 12))


def axis_unit(values: Iterable[float], unit: str) -> AxisUnit:
    """The largest unit that the largest value has at least one of; of rates, many of."""
    largest = max((abs(value) for value in values), default=0.0)
    units = _units(unit)
    return next((one for one, fewest in units if largest >= fewest), units[-1][0])


def scaled_axis(axis: Axis, values: Iterable[float], unit: str, quantity: str) -> None:
    """Labels the axis "throughput (k images/s)" and writes its ticks in that unit.

    Without a quantity it has no label, as a panel whose neighbour has the same one.
    """
    chosen = axis_unit(values, unit)
    axis.set_major_formatter(FuncFormatter(chosen.written))
    axis.set_label_text(f"{quantity} ({chosen.name})" if quantity else "")


def _units(unit: str) -> list[tuple[AxisUnit, float]]:
    """Display units for a unit, the largest first, each with the least value that uses it."""
    if unit == "s":
        names = {"s": 1.0, "ms": 1e-3, "µs": 1e-6}
        return [(AxisUnit(name=name, size=size), size) for name, size in names.items()]
    if unit == "B/s":
        names = {"GB/s": 1e9, "MB/s": 1e6, "kB/s": 1e3, "B/s": 1.0}
        return [(AxisUnit(name=name, size=size), size) for name, size in names.items()]
    if unit == "of linear":
        return [(AxisUnit(name="% of linear scaling", size=0.01), 0.0)]
    plain = (AxisUnit(name=unit, size=1.0), 0.0)
    if not unit.endswith("/s"):
        return [plain]
    return [
        (AxisUnit(name=f"M {unit}", size=1e6), MILLIONS),
        (AxisUnit(name=f"k {unit}", size=1e3), THOUSANDS),
        plain,
    ]

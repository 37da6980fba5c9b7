"""How all charts look: colours, lines, fonts, panels, captions.

Colours are Okabe and Ito's, which people with any colour vision tell apart; the line style and
the marker say the backend, so that no chart depends on colour alone.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpbench.specs import BACKENDS, IMPLEMENTATIONS

BLUE, VERMILION, GREEN, ORANGE = "#0072B2", "#D55E00", "#009E73", "#E69F00"
SKY, PURPLE, BLACK, GREY = "#56B4E9", "#CC79A7", "#000000", "#8A8A8A"
PALETTE = (BLUE, VERMILION, GREEN, ORANGE, PURPLE, SKY, BLACK)

IMPLEMENTATION_COLOURS = {
    "ddp": BLUE,
    "torch-ddp": VERMILION,
    "torch-ddp-static": PURPLE,
    "dp": SKY,
    "torch-dp": ORANGE,
    "independent": GREEN,
    "single": BLACK,
}
Dash = Literal["-", "--", ":", "-."]
DASHES: tuple[Dash, ...] = ("-", "--", ":", "-.")
MARKERS = ("o", "s", "^", "D", "v", "P")

RULES: Any = {
    "figure.dpi": 110,
    "font.size": 9.0,
    "axes.titlesize": 10.0,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#555555",
    "axes.grid": True,
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.7,
    "axes.axisbelow": True,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
    "legend.frameon": False,
    # Text stays text in SVG (small, searchable), and equal data gives equal files.
    "svg.fonttype": "none",
    "svg.hashsalt": "dpbench",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class SeriesStyle:
    """The look of one implementation on one backend, the same in all charts."""

    color: str
    linestyle: Dash
    marker: str


@contextmanager
def house_style() -> Iterator[None]:
    """The rules for everything that is drawn and saved inside; none outlive it."""
    with mpl.rc_context(RULES):
        yield


def series_styles(series: Sequence[tuple[str, str | None]]) -> dict[str, SeriesStyle]:
    """One style for every (implementation, backend); keys as in `ConfigurationSummary.series`.

    Colour tells the implementation; of a single implementation, it tells the backend.
    """
    implementations = list(dict.fromkeys(name for name, _ in series))
    backends = list(dict.fromkeys(backend for _, backend in series))
    alone = len(implementations) == 1 and implementations[0] not in IMPLEMENTATIONS
    styles = {}
    for implementation, backend in series:
        place = _place(backend, backends)
        colour = PALETTE[place % len(PALETTE)]
        styles[f"{implementation} {backend}"] = SeriesStyle(
            color=colour if alone else _implementation_colour(implementation, implementations),
            linestyle=DASHES[place % len(DASHES)],
            marker=MARKERS[place % len(MARKERS)],
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
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold")
    characters = int(figure.get_figwidth() * 15.5)
    figure.supxlabel(
        textwrap.fill(caption, characters), x=0.01, ha="left", fontsize=7.5, color="#555555"
    )
    return figure


def plain_number(value: float, _: object = None) -> str:
    """Writes axis numbers without exponents: 1,500 or 0.25."""
    return f"{value:,.0f}" if abs(value) >= 10 or value == int(value) else f"{value:,.3g}"


def _place(backend: str | None, all_backends: Sequence[str | None]) -> int:
    """The same number for the same registered backend in every chart; others come after."""
    if backend is None:
        return 0
    known = list(BACKENDS)
    others = [name for name in all_backends if name is not None and name not in BACKENDS]
    return [*known, *others].index(backend)


def _implementation_colour(name: str, all_names: Sequence[str]) -> str:
    if name in IMPLEMENTATION_COLOURS:
        return IMPLEMENTATION_COLOURS[name]
    taken = {IMPLEMENTATION_COLOURS[n] for n in all_names if n in IMPLEMENTATION_COLOURS}
    free = [colour for colour in PALETTE if colour not in taken] or list(PALETTE)
    others = [n for n in all_names if n not in IMPLEMENTATION_COLOURS]
    return free[others.index(name) % len(free)]

"""Names of lines at the right of a panel, each level with the end of its line, none on another.

Where lines end is known only when a figure is laid out: names are moved apart while it is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backend_bases import RendererBase
from matplotlib.lines import Line2D
from matplotlib.text import Annotation
from matplotlib.transforms import IdentityTransform

from dpbench.report.charts.style import INK, MUTED

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


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
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
        heights = spread([y for _, y in ends], gap, box.y0, box.y1)
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

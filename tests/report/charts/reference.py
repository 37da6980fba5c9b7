"""Reference pictures of all charts, and how far a figure is from its own.

After a change that is meant to be seen

    python -m tests.report.charts.reference

draws them anew; look at each one before it is committed.

They are without letters, which come out differently with every version of FreeType and move what
stands around them; words are what other tests read. What is left is compared in tiles, whose mean
colour hardly depends on how an edge is smoothed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.image import imread, imsave
from matplotlib.text import Text
from matplotlib.ticker import NullFormatter

from dpbench.report.charts.kinds import CHARTS
from dpbench.report.charts.style import house_style
from tests.report.charts.pictured import figure

FOLDER = Path(__file__).with_name("reference")
DOTS_PER_INCH = 50
TILE = 8
"""Pixels of its sides."""
Picture = npt.NDArray[np.float64]
"""Rows of pixels of red, green and blue from 0 to 1."""


def picture(figure: Figure) -> Picture:
    """What a figure looks like, small and without letters; it is left as it was."""
    before = figure.dpi
    with house_style(), _without_letters(figure):
        canvas = FigureCanvasAgg(figure)
        figure.set_dpi(DOTS_PER_INCH)
        canvas.draw()
        pixels = np.asarray(canvas.buffer_rgba())[..., :3] / 255
        figure.set_dpi(before)
    return pixels


def reference(kind: str) -> Picture:
    return np.asarray(imread(FOLDER / f"{kind}.png"), dtype=np.float64)[..., :3]


def difference(one: Picture, other: Picture) -> float:
    """Of the two tiles that differ most, from 0 to 1; 1 for pictures of different sizes."""
    if one.shape != other.shape:
        return 1.0
    return float(np.abs(_tiles(one) - _tiles(other)).max())


def _tiles(pixels: Picture) -> Picture:
    """The mean colour of each, those cut off at the edges left out."""
    height, width = (size // TILE for size in pixels.shape[:2])
    whole = pixels[: height * TILE, : width * TILE]
    return whole.reshape(height, TILE, width, TILE, 3).mean(axis=(1, 3))


@contextmanager
def _without_letters(figure: Figure) -> Iterator[None]:
    axes = [axis for one in figure.axes for axis in (one.xaxis, one.yaxis)]
    formats = [axis.get_major_formatter() for axis in axes]
    for axis in axes:
        axis.set_major_formatter(NullFormatter())
    words = [text for text in figure.findobj(Text) if text.get_visible()]
    for text in words:
        text.set_visible(False)
    try:
        yield
    finally:
        for text in words:
            text.set_visible(True)
        for axis, format in zip(axes, formats, strict=True):
            axis.set_major_formatter(format)


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.glob("*.png"):
        old.unlink()
    for kind in CHARTS:
        imsave(FOLDER / f"{kind}.png", picture(figure(kind)))


if __name__ == "__main__":
    main()

"""Charts as files: each at once or not at all, and none left over from an earlier report."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any, Literal

from matplotlib.figure import Figure

from dpbench.files import write_named, write_whole
from dpbench.report.charts.source import ChartSource, NothingToDraw
from dpbench.report.charts.style import house_style

Chart = Callable[[ChartSource], Figure]
"""Draws, or raises `NothingToDraw` where its data is missing."""

Image = Literal["svg", "png", "pdf"]
IMAGES: tuple[Image, ...] = ("svg", "png", "pdf")
PIXELS_PER_INCH = 130
_UNDATED: dict[str, dict[str, Any]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
"""Without dates equal data gives equal files."""


def write_charts(
    folder: Path,
    charts: Mapping[str, Chart],
    source: ChartSource,
    images: Sequence[Image] = ("svg",),
) -> tuple[list[Path], list[str]]:
    """Writes folder/<name>.<image>; also says which charts have nothing to show and why.

    Files of those are removed, whatever their format. Raises OSError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths, remarks = [], []
    with house_style():
        for name, chart in charts.items():
            try:
                figure = chart(source)
            except NothingToDraw as reason:
                remarks.append(f"no chart {name}: {reason}")
                remove_images(folder, name)
                continue
            paths += [write_figure(figure, folder / f"{name}.{image}") for image in images]
    return paths, remarks


def write_figure(figure: Figure, path: Path, *, named_by_user: bool = False) -> Path:
    """Writes it in the format that the suffix names; within `house_style`. Raises OSError."""
    write = write_named if named_by_user else write_whole
    return write(path, partial(_save, figure, path.suffix[1:].lower()))


def svg_of(figure: Figure) -> str:
    """The content of the SVG file that `write_figure` would write."""
    text = io.StringIO()
    _save(figure, "svg", text)
    return text.getvalue()


def remove_images(folder: Path, name: str) -> None:
    """Remove images of an earlier report, in any format. Raises OSError."""
    for image in IMAGES:
        (folder / f"{name}.{image}").unlink(missing_ok=True)


@contextmanager
def any_letters() -> Iterator[None]:
    """A name may have letters that the font lacks: they show as boxes, which says enough."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph", category=UserWarning)
        yield


def _save(figure: Figure, image: str, to: IO[bytes] | IO[str]) -> None:
    with any_letters():
        figure.savefig(to, format=image, dpi=PIXELS_PER_INCH, metadata=_UNDATED.get(image, {}))

"""Charts as files: each at once or not at all, and none left over from an earlier report."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from matplotlib.figure import Figure

from dpbench.report.charts.source import ChartSource, NothingToDraw
from dpbench.report.charts.style import house_style

Chart = Callable[[ChartSource], Figure]
"""Draws, or raises `NothingToDraw` where its data is missing."""

IMAGES = ("png", "svg")
PIXELS_PER_INCH = 130


def write_charts(
    folder: Path, charts: Mapping[str, Chart], source: ChartSource
) -> tuple[list[Path], list[str]]:
    """Writes folder/<name>.png and .svg; also says which charts have nothing to show and why.

    Files of those are removed. Raises OSError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths, remarks = [], []
    with house_style():
        for name, chart in charts.items():
            files = [folder / f"{name}.{image}" for image in IMAGES]
            try:
                figure = chart(source)
            except NothingToDraw as reason:
                remarks.append(f"no chart {name}: {reason}")
                for file in files:
                    file.unlink(missing_ok=True)
                continue
            paths += [write_whole(file, _saver(figure, file.suffix[1:])) for file in files]
    return paths, remarks


def write_whole(path: Path, write: Callable[[Path], None]) -> Path:
    """Writes beside the file and renames, so that nobody ever reads half of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def _saver(figure: Figure, image: str) -> Callable[[Path], None]:
    # Without its date, equal data gives an equal file.
    metadata = {"Date": None} if image == "svg" else {}

    def save(path: Path) -> None:
        figure.savefig(path, format=image, dpi=PIXELS_PER_INCH, metadata=metadata)

    return save

"""`dpbench plot`: charts of a results folder or a published table, one by one, in any format."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from dpbench.cli.show_results import latest
from dpbench.errors import StoreError, UsageError
from dpbench.files import folder_inside
from dpbench.messages import say, warn
from dpbench.options.bridge import command, read_options
from dpbench.options.plot import ALL, PlotOptions
from dpbench.report.charts.kinds import CHARTS, NothingToDraw
from dpbench.run.results import is_table, read_subject, select_rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Drawing = tuple[str, str, "Callable[[], Figure]"]
"""Name of a chart, its work, and what draws it."""


@command(PlotOptions)
def plot(typed: dict[str, Any]) -> None:
    """Draw charts of results as PNG, SVG or PDF.

    dpbench plot throughput,efficiency results/demo --format pdf

    dpbench plot implementations results/demo --group-size 2 --output beside-torch

    Charts: throughput, implementations, speedup, efficiency, step-shares, step-times, loss,
    bandwidth. 'dpbench list charts' describes them.
    """
    first, second = typed.get("kinds", ""), typed.get("path", ALL)
    if _is_place(first) and not _is_place(second):
        typed = {**typed, "kinds": second, "path": first}  # the folder, then charts or none
    options = read_options(PlotOptions, typed)
    from dpbench.report.page import CHART_FOLDER, REPORT_FOLDER

    path = options.path or latest("plot", sweeps_only=options.kinds != ("bandwidth",))[0]
    if options.output is None and is_table(path):
        raise UsageError(
            f"{path} is a table, which has no folder for charts; say where they go: --output FOLDER"
        )
    subject = read_subject(path)
    warn(*(subject.stored.warnings if subject.stored else ()))
    subject = select_rows(subject, options)
    kinds = list(CHARTS.values())
    if ALL not in options.kinds:
        kinds = [CHARTS[name] for name in options.kinds]
    drawings = [
        (kind.name, one.work, partial(kind.draw, one))
        for kind in kinds
        for one in kind.subjects(subject)
    ]
    folder = options.output or folder_inside(path, REPORT_FOLDER, CHART_FOLDER)
    paths, empty = _save_charts(drawings, folder, options.format)
    for written in paths:
        typer.echo(written)
    if empty and (ALL not in options.kinds or len(empty) == len(drawings)):
        raise UsageError(f"{path}: {'; '.join(empty)}")
    say(*empty)


def _is_place(text: str) -> bool:
    """Whether an argument is a folder or a table, not names of charts."""
    return bool(text) and (os.sep in text or Path(text).is_dir() or is_table(Path(text)))


def _save_charts(
    drawings: Iterable[Drawing], folder: Path, images: Sequence[str]
) -> tuple[list[Path], list[str]]:
    """Writes folder/<name>.<image>. Returns the files, and why some charts have nothing to show.

    Raises StoreError.
    """
    from dpbench.report.charts.files import stem_of, write_figure
    from dpbench.report.charts.style import house_style

    paths, empty = [], []
    with house_style():
        for name, work, draw in drawings:
            stem = stem_of(name, work)
            try:
                figure = draw()
            except NothingToDraw as reason:
                empty.append(f"no chart {stem}: {reason}")
                continue
            for target in (folder / f"{stem}.{image}" for image in images):
                try:
                    folder.mkdir(parents=True, exist_ok=True)
                    write_figure(figure, target)
                except OSError as error:
                    raise StoreError(f"cannot write {target}: {error.strerror}") from None
                paths.append(target)
    return paths, empty

"""`dpbench plot`: charts of a results folder or a published table, one by one, in any format."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import typer

from dpbench.cli.signature import command
from dpbench.errors import UsageError
from dpbench.messages import say, warn
from dpbench.options.reading import read_options
from dpbench.options.results import ALL, PlotOptions
from dpbench.report.charts.kinds import CHARTS, NothingToDraw
from dpbench.run.results import is_table, latest_folders, read_analysis, select_rows


@command(PlotOptions)
def plot(typed: dict[str, Any]) -> None:
    """Draw charts of results as PNG, SVG or PDF.

    dpbench plot throughput,efficiency results/demo --format pdf

    dpbench plot implementations results/demo --group-size 2 --output beside-torch

    Charts: {charts}. 'dpbench list charts' describes them.
    """
    first, second = typed.get("kinds", ""), typed.get("path", ALL)
    if _is_place(first) and not _is_place(second):
        typed = {**typed, "kinds": second, "path": first}  # the folder, then charts or none
    options = read_options(PlotOptions, typed)
    from dpbench.report.charts.files import stem_of, write_figure
    from dpbench.report.charts.style import house_style
    from dpbench.report.page import charts_folder

    kinds = [*CHARTS.values()] if ALL in options.kinds else [CHARTS[k] for k in options.kinds]
    sweeps_only = any(kind.source == "sweep" for kind in kinds)
    path = options.path or latest_folders("plot", sweeps_only=sweeps_only)[0]
    if options.output is None and is_table(path):
        raise UsageError(
            f"{path} is a table, which has no folder for charts; say where they go: --output FOLDER"
        )
    analysis = read_analysis(path)
    warn(*(analysis.stored.warnings if analysis.stored else ()))
    analysis = select_rows(analysis, options)
    folder = options.output or charts_folder(path)
    charts = [(kind, shown) for kind in kinds for shown in analysis.by_work]
    drawn, empty = 0, []
    with house_style():
        for kind, shown in charts:
            stem = stem_of(kind.name, shown.work_label)
            try:
                figure = kind.draw(shown)
            except NothingToDraw as reason:
                empty.append(f"no chart {stem}: {reason}")
                continue
            drawn += 1
            for target in (folder / f"{stem}.{image}" for image in options.format):
                folder.mkdir(parents=True, exist_ok=True)
                typer.echo(write_figure(figure, target))
    if empty and (ALL not in options.kinds or not drawn):
        raise UsageError(f"{path}: {'; '.join(empty)}")
    say(*empty)


plot.__doc__ = (plot.__doc__ or "").format(charts=", ".join(CHARTS))


def _is_place(text: str) -> bool:
    """Whether an argument is a folder or a table, not names of charts."""
    return bool(text) and (os.sep in text or Path(text).is_dir() or is_table(Path(text)))

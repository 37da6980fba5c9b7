"""Writes charts into files, for every command that draws some."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from dpbench.errors import StoreError
from dpbench.files import folder_inside

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from dpbench.report.charts.files import Chart
    from dpbench.report.charts.source import ChartSource


def chart_folder(results: Path) -> Path:
    """The charts' path for a results folder."""
    from dpbench.report.document import CHART_FOLDER, REPORT_FOLDER

    return folder_inside(results, REPORT_FOLDER, CHART_FOLDER)


def write_chart(figure: Figure, file: Path, *, named_by_user: bool) -> None:
    """Writes it in the format of the suffix, within `house_style`; raises StoreError."""
    from dpbench.report.charts.files import write_figure

    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_figure(figure, file, named_by_user=named_by_user)
    except OSError as error:
        raise StoreError(f"cannot write {file}: {error.strerror}") from None


def draw_into(folder: Path, charts: Mapping[str, Chart], source: ChartSource) -> None:
    """Draws folder/<name>.<image>, and says on stderr what is where, or why a chart has nothing to
    show.

    Raises StoreError if it cannot write.
    """
    from dpbench.report.charts.files import write_charts
    from dpbench.report.charts.kinds import DEFAULT_IMAGES

    try:
        paths, remarks = write_charts(folder, charts, source, DEFAULT_IMAGES)
    except OSError as error:
        raise StoreError(f"cannot write the chart to {folder}: {error.strerror}") from None
    for line in (*remarks, *(f"{path.stem} in {path}" for path in paths)):
        typer.echo(line, err=True)

"""Charts that commands draw beside what they print: into the report folder, a line for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from dpbench.errors import StoreError
from dpbench.files import folder_inside

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from dpbench.analysis.configuration import ConfigurationSummary
    from dpbench.analysis.explanation import Explanation
    from dpbench.report.charts.files import Chart, Image
    from dpbench.report.charts.source import ChartSource
    from dpbench.store import StoredSweep

FORMATS: tuple[Image, ...] = ("png", "svg", "pdf")
IMAGES: tuple[Image, ...] = ("png", "svg")
"""To look at, and to put into pages and papers."""


def source_of(
    sweep: StoredSweep,
    rows: Sequence[ConfigurationSummary] = (),
    explained: Sequence[Explanation] | None = None,
) -> ChartSource:
    """Rows of the sweep that are drawn, with what their captions say.

    `explained` are the explanations of these rows, where there are some already.
    """
    from dpbench.report.charts.source import ChartSource

    return ChartSource(
        rows=tuple(rows),
        records=sweep.records,
        environments=sweep.environments,
        name=sweep.folder.resolve().name,
        explained=None if explained is None else tuple(explained),
    )


def chart_folder(results: Path) -> Path:
    """Where the charts of a results folder are."""
    from dpbench.cli.shown import REPORT_FOLDER
    from dpbench.report.document import CHART_FOLDER

    return folder_inside(results, REPORT_FOLDER, CHART_FOLDER)


def write_chart(figure: Figure, file: Path, *, named_by_user: bool) -> None:
    """In the format that its suffix names, within `house_style`; StoreError if it cannot."""
    from dpbench.report.charts.files import write_figure

    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_figure(figure, file, named_by_user=named_by_user)
    except OSError as error:
        raise StoreError(f"cannot write {file}: {error.strerror}") from None


def draw_charts(
    folder: Path,
    charts: Mapping[str, Chart],
    source: ChartSource,
    images: Sequence[Image] = IMAGES,
) -> tuple[list[Path], list[str]]:
    """Draws folder/<name>.<image>; gives the files, and which charts have nothing to show and why.

    Raises StoreError if it cannot write.
    """
    from dpbench.report.charts.files import write_charts

    try:
        return write_charts(folder, charts, source, images)
    except OSError as error:
        raise StoreError(f"cannot write the chart to {folder}: {error.strerror}") from None


def draw_beside(results: Path, charts: Mapping[str, Chart], source: ChartSource) -> None:
    """Draws into the report of a results folder, and says on stderr what is where, or why not."""
    paths, remarks = draw_charts(chart_folder(results), charts, source)
    for line in (*remarks, *(f"{path.stem} in {path}" for path in paths)):
        typer.echo(line, err=True)

"""`dpbench plot`: charts of results, each in a file of its own."""

from __future__ import annotations

from itertools import product

from matplotlib.figure import Figure

from dpbench.analysis.analyze import read_results
from dpbench.analysis.published import is_table
from dpbench.errors import UsageError
from dpbench.files import folder_inside
from dpbench.messages import say, warn
from dpbench.options.results import ALL_CHARTS, PlotOptions
from dpbench.report.charts.figures import house_style, stem_of, write_figure
from dpbench.report.charts.kinds import CHARTS, NothingToDraw
from dpbench.report.page import CHART_FOLDER, REPORT_FOLDER
from dpbench.run.results_folders import first_free, results_to_read


def plot(options: PlotOptions) -> str:
    """Draw charts into a folder; the text lists their files.

    Raises UsageError for a chart that was asked for by its name and has nothing to show.
    """
    draws_all = ALL_CHARTS in options.kinds
    kinds = [CHARTS[name] for name in (CHARTS if draws_all else options.kinds)]
    sweeps_only = not all(kind.shows_collectives for kind in kinds)
    path = results_to_read("plot", options.path, sweeps_only=sweeps_only)
    if options.output is None and is_table(path):
        raise UsageError(
            f"{path} is a table, which has no folder for charts; say where they go: --output FOLDER"
        )
    results = read_results(path)
    warn(*results.warnings)
    options.require_rows(results.rows, results.name)
    parts = results.select(options.keeps).by_work
    folder = options.output or folder_inside(path, REPORT_FOLDER, CHART_FOLDER)
    drawn: dict[str, Figure] = {}
    empty = list[str]()
    with house_style():
        for kind, work in product(kinds, parts):
            stem = first_free(stem_of(kind.name, work), lambda free: free in drawn)
            try:
                drawn[stem] = kind.draw(parts[work])
            except NothingToDraw as reason:
                empty.append(f"no chart {stem}: {reason}")
        if empty and not (draws_all and drawn):
            raise UsageError(f"{path}: {'; '.join(empty)}")
        say(*empty)
        folder.mkdir(parents=True, exist_ok=True)
        written = [
            write_figure(figure, folder / f"{stem}.{image}")
            for stem, figure in drawn.items()
            for image in options.format
        ]
    return "".join(f"{file}\n" for file in written)

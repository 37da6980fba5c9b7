"""The commands that read results: `report`, `plot`, `compare` and `project`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from dpbench.cli.signature import command
from dpbench.errors import UsageError
from dpbench.files import write_output
from dpbench.messages import say, warn
from dpbench.options.results import CompareOptions, PlotOptions, ProjectOptions, ReportOptions
from dpbench.report.charts.kinds import CHARTS, NothingToDraw
from dpbench.run.results import (
    is_current,
    is_table,
    latest_folder,
    load_sides,
    read_analysis,
    select_rows,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from dpbench.analysis.analyze import Analysis
    from dpbench.report.answer import Answer


@command(ReportOptions)
def report(options: ReportOptions) -> Answer | str | None:
    """Show results as a table, and write an HTML page with charts.

    dpbench report results/demo --open

    dpbench report results/demo --output table.csv

    With --format or a file for rows, it writes rows and no page. Options that choose rows apply to
    the printed output; the page always has all rows.
    """
    path = options.path or latest_folder("report", sweeps_only=False)
    if options.open and options.output is None and is_table(path):
        raise UsageError(f"--open: nothing is written of {path} without --output DIR; add it")
    analysis = read_analysis(path)
    chosen = select_rows(analysis, options)
    format = options.rows_format
    if analysis.collectives and options.columns:
        format = format or "csv"
    if format is not None:
        text = rows_as(format, chosen, options.columns)
        if options.file is None:
            return text
        write_output(options.file, text)
        say(f"the table is in {options.file}")
        return None
    from dpbench.report.answers.report import report_answer
    from dpbench.report.page import page_path, page_path_in, write_page

    page = None
    if options.output is not None:
        page = options.file or page_path_in(options.output)
    elif not is_table(path):
        page = page_path(path)
    answer = report_answer(chosen, page=page, columns=options.columns, verbose=options.verbose)
    # A current page in the results folder may have charts; any other may show another sweep.
    if page and (options.output or options.charts or not is_current(page, path)):
        write_page(page, analysis, charts=options.charts)
    if page and options.open:
        import webbrowser

        address = page.resolve().as_uri()
        if not webbrowser.open(address):
            say(f"no browser was found; open {address} in one")
    return answer


def rows_as(format: str, analysis: Analysis, columns: str | None) -> str:
    """The rows in a format for documents or programs; notes go to stderr."""
    from dpbench.report import DATA_FORMATS
    from dpbench.report.configurations import frame_text, rows_text
    from dpbench.report.notes import notes, warnings

    is_data = format in DATA_FORMATS
    warn(*(analysis.warnings if is_data else warnings(analysis)))
    for note in () if is_data else notes(analysis):
        print(note, file=sys.stderr)
    if analysis.collectives:
        from dpbench.analysis.frames import collective_frame

        return frame_text(collective_frame(analysis.collectives.records), format, columns)
    return rows_text(analysis.rows, format=format, columns=columns)


@command(PlotOptions)
def plot(options: PlotOptions) -> str:
    """Draw charts of results as PNG, SVG or PDF.

    dpbench plot throughput,efficiency results/demo --format pdf

    dpbench plot implementations results/demo --group-sizes 2 --output beside-torch

    Charts: {charts}. 'dpbench list charts' describes them.
    """
    from dpbench.report.charts.figures import house_style, stem_of, write_figure
    from dpbench.report.page import charts_folder

    kinds = [CHARTS[name] for name in (CHARTS if options.draws_all else options.kinds)]
    sweeps_only = any(kind.is_of_sweeps for kind in kinds)
    path = options.path or latest_folder("plot", sweeps_only=sweeps_only)
    if options.output is None and is_table(path):
        raise UsageError(
            f"{path} is a table, which has no folder for charts; say where they go: --output FOLDER"
        )
    analysis = read_analysis(path)
    warn(*analysis.warnings)
    analysis = select_rows(analysis, options)
    folder = options.output or charts_folder(path)
    charts = [(kind, shown) for kind in kinds for shown in analysis.by_work]
    drawn: dict[str, Figure] = {}
    empty = list[str]()
    with house_style():
        for kind, shown in charts:
            stem = stem_of(kind.name, shown.work)
            try:
                drawn[stem] = kind.draw(shown)
            except NothingToDraw as reason:
                empty.append(f"no chart {stem}: {reason}")
        if empty and not (options.draws_all and drawn):
            raise UsageError(f"{path}: {'; '.join(empty)}")
        say(*empty)
        folder.mkdir(parents=True, exist_ok=True)
        written = [
            write_figure(figure, folder / f"{stem}.{image}")
            for stem, figure in drawn.items()
            for image in options.format
        ]
    return "".join(f"{file}\n" for file in written)


plot.__doc__ = (plot.__doc__ or "").format(charts=", ".join(CHARTS))


@command(CompareOptions)
def compare(options: CompareOptions) -> Answer:
    """Compare sweeps, or parts of one: which is faster, by how much.

    dpbench compare results/before results/after

    dpbench compare results/x:implementation=torch-ddp results/x:implementation=ddp

    Exit status: 0 compared, whatever the result (dpbench check is the gate); 2 usage; 5 the two
    cannot be compared.
    """
    from dpbench.analysis.comparisons.comparison import compare_sides
    from dpbench.report.answers.compare import comparison_answer

    (before, now), warnings = load_sides(options.baseline, options.candidate)
    warn(*warnings)
    compared = compare_sides(before, now, force=options.force)
    return comparison_answer(compared, options.metric, within=options.within)


@command(ProjectOptions)
def project(options: ProjectOptions) -> Answer:
    """Project speed to other group sizes and networks.

    dpbench project results/scaling --group-sizes 8,16

    dpbench project results/scaling --topology h100-nvswitch-ndr

    Without a network, a scaling law predicts up to four times the largest measured group size.
    With a network, steps are simulated.
    """
    from dpbench.run import projection

    return projection.project(options)

"""What commands answer from results, stored or just measured, and the pages that they write."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from dpbench.errors import UsageError
from dpbench.files import write_output
from dpbench.folders import LOGS_FOLDER
from dpbench.messages import say, warn
from dpbench.options.results import ALL_CHARTS
from dpbench.report.charts.kinds import CHARTS, NothingToDraw
from dpbench.run.results import (
    is_table,
    last_measured,
    latest_folder,
    load_sides,
    read_analysis,
    select_rows,
)

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.figure import Figure

    from dpbench.analysis.analyze import Analysis
    from dpbench.folders import Collectives, Sweep
    from dpbench.options.comm import CommOptions
    from dpbench.options.results import CompareOptions, PlotOptions, ReportOptions
    from dpbench.options.sweep import SweepOptions
    from dpbench.report.answer import Answer
    from dpbench.specs.command_line import CommandLine


def measured_answer(
    stored: Sweep | Collectives,
    options: CommOptions | SweepOptions,
    *,
    typed: CommandLine | None = None,
    verbose: bool = False,
) -> Answer:
    """What a command has measured, of which it writes the page; see `report_answer`. Says where the
    records and the output of failures are."""
    from dpbench.analysis.analyze import analyze
    from dpbench.records.trial import Status
    from dpbench.report.answers.report import report_answer
    from dpbench.report.page import page_path, write_page

    analysis, page = analyze(stored), page_path(stored.folder)
    write_page(page, analysis, charts=options.charts, typed=typed)
    logs, fine = stored.folder / LOGS_FOLDER, (Status.COMPLETED, Status.SKIPPED)
    if logs.is_dir() and any(record.status not in fine for record in stored.records):
        say(f"the output of trials that failed is in {logs}")
    if not options.as_json:
        return report_answer(analysis, page=page, typed=typed, verbose=verbose)
    from dpbench.analysis.frames import collective_frame, row_frame
    from dpbench.report.answer import Answer
    from dpbench.report.configurations import plain_rows

    say(f"records are in {stored.folder}")
    measured = analysis.collectives
    frame = collective_frame(measured.records) if measured else row_frame(analysis.rows)
    return Answer(paragraphs=(), data=plain_rows(frame))


def report(options: ReportOptions) -> Answer | str | None:
    """The table of results, of which a page is written; or their rows in another format as text,
    None if they are in a file.

    Raises UsageError for rows or columns that the results do not have, and FileError.
    """
    path = options.path or latest_folder("report", sweeps_only=False)
    if options.open and options.output is None and is_table(path):
        raise UsageError(f"--open: nothing is written of {path} without --output DIR; add it")
    analysis = read_analysis(path)
    format = options.rows_format
    if format is None and analysis.collectives and options.columns:
        if options.output or options.open:
            raise UsageError(
                "--columns: the page of collectives has all columns; leave it out, or write rows "
                "with --output FILE.csv"
            )
        format = "csv"
    if format is None:
        return _report_page(options, path, analysis)
    text = _rows_as(format, select_rows(analysis, options), options.columns)
    if options.file is None:
        return text
    write_output(options.file, text)
    say(f"the table is in {options.file}")
    return None


def _report_page(options: ReportOptions, path: Path, analysis: Analysis) -> Answer:
    """The table of the rows that are asked for; the page of all rows is written, and opened."""
    from dpbench.report.answers.report import report_answer
    from dpbench.report.page import page_path, page_path_in, write_page

    page = None
    if options.output is not None:
        page = options.file or page_path_in(options.output)
    elif not is_table(path):
        page = page_path(path)
    chosen = select_rows(analysis, options)
    answer = report_answer(chosen, page=page, columns=options.columns, verbose=options.verbose)
    # A current page in the results folder may have charts; any other may show another sweep.
    if page and (options.output or options.charts or not _is_current(page, path)):
        write_page(page, analysis, charts=options.charts)
    if page and options.open:
        import webbrowser

        address = page.resolve().as_uri()
        if not webbrowser.open(address):
            say(f"no browser was found; open {address} in one")
    return answer


def _is_current(page: Path, results: Path) -> bool:
    """Whether the page in a results folder was written after its last measurement."""
    is_there = page.is_file() and not page.is_symlink()
    return is_there and page.stat().st_mtime >= last_measured(results)


def _rows_as(format: str, analysis: Analysis, columns: str | None) -> str:
    """The rows in a format for documents or programs; notes go to stderr."""
    from dpbench.report import DATA_FORMATS
    from dpbench.report.configurations import frame_text, rows_text

    warn(*analysis.warnings)
    for note in () if format in DATA_FORMATS else analysis.notes:
        print(note, file=sys.stderr)
    if analysis.collectives:
        from dpbench.analysis.frames import collective_frame

        return frame_text(collective_frame(analysis.collectives.records), format, columns)
    return rows_text(analysis.rows, format=format, columns=columns)


def plot(options: PlotOptions) -> str:
    """Draw charts into a folder; the text lists their files.

    Raises UsageError for a chart that was asked for by its name and has nothing to show.
    """
    from dpbench.report.charts.figures import house_style, stem_of, write_figure
    from dpbench.report.page import charts_folder

    draws_all = ALL_CHARTS in options.kinds
    kinds = [CHARTS[name] for name in (CHARTS if draws_all else options.kinds)]
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


def compare(options: CompareOptions) -> Answer:
    """Compare two sweeps, or parts of them. Raises NotComparable, UsageError and FileError."""
    from dpbench.analysis.comparisons.comparison import compare_sides
    from dpbench.report.answers.compare import comparison_answer

    (before, now), warnings = load_sides(options.baseline, options.candidate)
    warn(*warnings)
    compared = compare_sides(before, now, force=options.force)
    return comparison_answer(compared, options.metric, within=options.within)

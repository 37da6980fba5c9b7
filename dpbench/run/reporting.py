"""What commands answer from results, stored or just measured, and the pages that they write."""

from __future__ import annotations

import sys
from itertools import product
from typing import TYPE_CHECKING

from dpbench.errors import FileError, UsageError
from dpbench.files import write_output
from dpbench.folders import LOGS_FOLDER
from dpbench.messages import say, warn
from dpbench.options.results import ALL_CHARTS
from dpbench.report.charts.kinds import CHARTS, NothingToDraw
from dpbench.run.results import (
    first_free,
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
    from dpbench.report.answer import Answer
    from dpbench.report.answers.report import report_answer
    from dpbench.report.configurations import plain_rows

    analysis = analyze(stored)
    page = _page_in_results(stored.folder, analysis, charts=options.charts, typed=typed)
    logs = stored.folder / LOGS_FOLDER
    fine = (Status.COMPLETED, Status.SKIPPED)
    if logs.is_dir() and any(record.status not in fine for record in stored.records):
        say(f"the output of trials that failed is in {logs}")
    if not options.as_json:
        return report_answer(analysis, page=page, typed=typed, verbose=verbose)
    say(f"records are in {stored.folder}")
    return Answer(paragraphs=(), data=plain_rows(analysis.frame))


def _page_in_results(
    results: Path,
    analysis: Analysis,
    *,
    charts: bool,
    keeps_current: bool = False,
    typed: CommandLine | None = None,
) -> Path | None:
    """Write the page into a results folder, unless a current one stays; returns its path. Where it
    cannot be written, a warning says why, and the path is None."""
    from dpbench.report.page import page_path, write_page

    try:
        page = page_path(results)
        is_there = page.is_file() and not page.is_symlink()
        is_current = is_there and page.stat().st_mtime >= last_measured(results)
        if keeps_current and is_current:
            return page
        return write_page(page, analysis, charts=charts, typed=typed)
    except FileError as error:
        warn(f"no page was written: {error}")
        return None


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
    from dpbench.report.page import page_path_in, write_page

    chosen = select_rows(analysis, options)
    page = None
    if options.output is not None:
        page = options.file or page_path_in(options.output)
        write_page(page, analysis, charts=options.charts)
    elif not is_table(path):
        # A current page may have charts, which stay without --charts.
        page = _page_in_results(
            path, analysis, charts=options.charts, keeps_current=not options.charts
        )
    answer = report_answer(chosen, page=page, columns=options.columns, verbose=options.verbose)
    if page and options.open:
        import webbrowser

        address = page.resolve().as_uri()
        if not webbrowser.open(address):
            say(f"no browser was found; open {address} in one")
    return answer


def _rows_as(format: str, analysis: Analysis, columns: str | None) -> str:
    """The rows in a format for documents or programs; notes go to stderr."""
    from dpbench.report import DATA_FORMATS
    from dpbench.report.configurations import frame_text, rows_text

    warn(*analysis.warnings)
    for note in () if format in DATA_FORMATS else analysis.notes:
        print(note, file=sys.stderr)
    if format in DATA_FORMATS or analysis.collectives:
        return frame_text(analysis.frame, format, columns)
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
    drawn: dict[str, Figure] = {}
    empty = list[str]()
    with house_style():
        for kind, shown in product(kinds, analysis.by_work):
            stem = first_free(stem_of(kind.name, shown.work), lambda free: free in drawn)
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

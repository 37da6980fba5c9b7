"""`dpbench report`, and what the commands that measure answer: the table and the page."""

from __future__ import annotations

import sys
import webbrowser
from functools import partial
from pathlib import Path

from dpbench.analysis.analyze import Analysis, CollectivesAnalysis, analyze, read_analysis
from dpbench.analysis.published import is_table
from dpbench.errors import FileError, UsageError
from dpbench.files import write_output
from dpbench.folders import LOGS_FOLDER, Collectives, Sweep
from dpbench.messages import say, warn
from dpbench.options.comm import CommOptions
from dpbench.options.results import ReportOptions
from dpbench.options.shared import RowFilter
from dpbench.options.sweep import SweepOptions
from dpbench.report import DATA_FORMATS
from dpbench.report.answer import Answer
from dpbench.report.answers.report import report_answer
from dpbench.report.configurations import frame_text, plain_rows, rows_text
from dpbench.run.results_folders import last_measured, latest_folder
from dpbench.specs.command_line import CommandLine


def measured_answer(
    stored: Sweep | Collectives,
    options: CommOptions | SweepOptions,
    *,
    last_command: CommandLine | None = None,
    verbose: bool = False,
) -> Answer:
    """What a command has measured, of which it writes the page; see `report_answer`. Says where the
    records and the output of failures are."""
    analysis = analyze(stored)
    page = _write_page(stored.folder, analysis, charts=options.charts, last_command=last_command)
    logs = stored.folder / LOGS_FOLDER
    if logs.is_dir() and any(record.status.is_failure for record in stored.records):
        say(f"the output of trials that failed is in {logs}")
    if not options.as_json:
        return report_answer(analysis, page=page, last_command=last_command, verbose=verbose)
    say(f"records are in {stored.folder}")
    return Answer(paragraphs=(), data=plain_rows(analysis.frame))


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
    has_rows = not isinstance(analysis, CollectivesAnalysis)
    if format is None and options.columns and not has_rows:
        if options.output or options.open:
            raise UsageError(
                "--columns: the page of collectives has all columns; leave it out, or write rows "
                "with --output FILE.csv"
            )
        format = "csv"
    if format is None:
        return _report_page(options, path, analysis)
    analysis = select_rows(analysis, options)
    warn(*analysis.warnings)
    for note in () if format in DATA_FORMATS else analysis.notes:
        print(note, file=sys.stderr)
    if format in DATA_FORMATS or not has_rows:
        text = frame_text(analysis.frame, format, options.columns)
    else:
        text = rows_text(analysis.rows, format=format, columns=options.columns)
    if options.file is None:
        return text
    write_output(options.file, text)
    say(f"the table is in {options.file}")
    return None


def _report_page(options: ReportOptions, path: Path, analysis: Analysis) -> Answer:
    """The table of the rows that are asked for; the page of all rows is written, and opened."""
    from dpbench.report.page import page_path, page_path_in, write_page

    page = None
    if options.output is not None:
        page = options.file or page_path_in(options.output)
    elif not is_table(path):
        page = page_path(path)
    chosen = select_rows(analysis, options)
    answer = partial(report_answer, chosen, columns=options.columns, verbose=options.verbose)
    shown = answer(page=page)
    is_there = page is not None and page.is_file() and not page.is_symlink()
    # A page that is newer than all measurements may have charts; any other may show another sweep.
    is_current = page and is_there and page.stat().st_mtime >= last_measured(path)
    if page and options.output:
        write_page(page, analysis, charts=options.charts)
    elif page and (options.charts or not is_current):
        page = _write_page(path, analysis, charts=options.charts)
        shown = shown if page else answer()
    if page and options.open:
        address = page.resolve().as_uri()
        if not webbrowser.open(address):
            say(f"no browser was found; open {address} in one")
    return shown


def _write_page(
    results: Path, analysis: Analysis, *, charts: bool, last_command: CommandLine | None = None
) -> Path | None:
    """Write the page into a results folder and return its path; None, with a warning that says why,
    if it cannot be written."""
    from dpbench.report.page import page_path, write_page

    try:
        return write_page(page_path(results), analysis, charts=charts, last_command=last_command)
    except FileError as error:
        warn(f"no page was written: {error}")
        return None


def select_rows(analysis: Analysis, wanted: RowFilter) -> Analysis:
    """The analysis with the wanted rows alone; raises UsageError if there are none."""
    there = analysis.selectable
    if there and not any(map(wanted.keeps, there)):
        raise UsageError(f"{analysis.name}: no such row; there are {wanted.choices(there)}")
    return analysis.keeping(wanted.keeps)

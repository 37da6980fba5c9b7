"""`dpbench report`, and what the commands that measure answer: the table and the page."""

from __future__ import annotations

import webbrowser
from functools import partial
from pathlib import Path

from dpbench.analysis.analyze import Analysis, read_results
from dpbench.analysis.collectives import Collectives
from dpbench.analysis.published import is_table
from dpbench.errors import FileError, UsageError
from dpbench.files import write_output
from dpbench.folders import LOGS_FOLDER
from dpbench.messages import say, warn
from dpbench.options.comm import CommOptions
from dpbench.options.results import ReportOptions
from dpbench.options.sweep import SweepOptions
from dpbench.report import DATA_FORMATS
from dpbench.report.answer import Answer
from dpbench.report.answers.report import report_answer
from dpbench.report.configurations import frame_text, plain_rows, rows_text
from dpbench.report.page import page_path, page_path_in, page_text, write_page
from dpbench.run.results_folders import last_measured, results_to_read
from dpbench.specs.command_line import CommandLine


def measured_answer(
    results: Analysis | Collectives,
    folder: Path,
    options: CommOptions | SweepOptions,
    last_command: CommandLine | None = None,
    *,
    verbose: bool = False,
) -> Answer:
    """What a command has measured into a folder, of which it writes the page; see `report_answer`.
    Says where the records and the output of failures are."""
    text = page_text(results, charts=options.charts, last_command=last_command)
    page = _write_page(folder, text)
    logs = folder / LOGS_FOLDER
    if logs.is_dir() and any(record.status.is_failure for record in results.records):
        say(f"the output of trials that failed is in {logs}")
    if options.as_json:
        say(f"records are in {folder}")
        return Answer(paragraphs=(), data=plain_rows(results.frame))
    return report_answer(results, page=page, last_command=last_command, verbose=verbose)


def report(options: ReportOptions) -> Answer | str | None:
    """The table of results, of which a page is written; or their rows in another format as text,
    None if they are in a file.

    Raises UsageError for rows or columns that the results do not have, and FileError.
    """
    path = results_to_read("report", options.path, sweeps_only=False)
    if options.open and options.output is None and is_table(path):
        raise UsageError(f"--open: nothing is written of {path} without --output DIR; add it")
    results = read_results(path)
    options.require_rows(results.rows, results.name)
    chosen = results.select(options.keeps)
    format = options.rows_format
    if isinstance(chosen, Collectives) and options.columns and format is None:
        if options.output or options.open:
            raise UsageError(
                "--columns: the page of collectives has all columns; leave it out, or write rows "
                "with --output FILE.csv"
            )
        format = "csv"
    if format is None:
        return _report_page(options, path, results, chosen)
    warn(*chosen.warnings)
    if format in DATA_FORMATS or isinstance(chosen, Collectives):
        text = frame_text(chosen.frame, format, options.columns)
    else:
        say(*chosen.notes)
        text = rows_text(chosen.rows, format=format, columns=options.columns)
    if options.file is None:
        return text
    write_output(options.file, text)
    say(f"the table is in {options.file}")
    return None


def _report_page(
    options: ReportOptions,
    path: Path,
    results: Analysis | Collectives,
    chosen: Analysis | Collectives,
) -> Answer:
    """The answer on the chosen rows, beside a page of all results, which is written and opened."""
    answer = partial(report_answer, chosen, columns=options.columns, verbose=options.verbose)
    page = None
    if options.output is not None:
        page = options.file or page_path_in(options.output)
    elif not is_table(path):
        page = page_path(path)
    shown = answer(page=page)
    is_there = page is not None and page.is_file() and not page.is_symlink()
    # A page that is newer than all measurements may have charts; any other may show another sweep.
    is_current = page and is_there and page.stat().st_mtime >= last_measured(path)
    if page and options.output:
        write_page(page, page_text(results, charts=options.charts))
    elif page and (options.charts or not is_current):
        page = _write_page(path, page_text(results, charts=options.charts))
        shown = shown if page else answer()
    if page and options.open:
        address = page.resolve().as_uri()
        if not webbrowser.open(address):
            say(f"no browser was found; open {address} in one")
    return shown


def _write_page(folder: Path, text: str) -> Path | None:
    """Write the page into a results folder and return its path; None, with a warning that says why,
    if it cannot be written."""
    try:
        return write_page(page_path(folder), text)
    except FileError as error:
        warn(f"no page was written: {error}")
        return None

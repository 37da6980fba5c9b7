"""`dpbench report`, and what the commands that measure answer: the table and the page."""

from __future__ import annotations

import sys
import webbrowser
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from dpbench.analysis.analyze import Analysis, analyze, read_results
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
from dpbench.report.answers.comm import collectives_answer
from dpbench.report.answers.report import report_answer
from dpbench.report.configurations import frame_text, plain_rows, rows_text
from dpbench.report.page import page_path, page_path_in, page_text, write_page
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
    results = analyze(stored) if isinstance(stored, Sweep) else stored
    text = page_text(results, charts=options.charts, last_command=last_command)
    page = _write_page(stored.folder, text)
    logs = stored.folder / LOGS_FOLDER
    if logs.is_dir() and any(record.status.is_failure for record in stored.records):
        say(f"the output of trials that failed is in {logs}")
    if options.as_json:
        from dpbench.analysis.frames import collective_frame, row_frame

        say(f"records are in {stored.folder}")
        if isinstance(results, Collectives):
            return Answer(paragraphs=(), data=plain_rows(collective_frame(results.records)))
        return Answer(paragraphs=(), data=plain_rows(row_frame(results.rows)))
    if isinstance(results, Collectives):
        return collectives_answer(results, page)
    return report_answer(results, page=page, last_command=last_command, verbose=verbose)


def report(options: ReportOptions) -> Answer | str | None:
    """The table of results, of which a page is written; or their rows in another format as text,
    None if they are in a file.

    Raises UsageError for rows or columns that the results do not have, and FileError.
    """
    path = options.path or latest_folder("report", sweeps_only=False)
    if options.open and options.output is None and is_table(path):
        raise UsageError(f"--open: nothing is written of {path} without --output DIR; add it")
    results = read_results(path)
    if isinstance(results, Collectives):
        shown = _collectives(options, results)
    else:
        shown = _rows(options, results)
    if not isinstance(shown, str):
        return _report_page(options, path, results, shown)
    if options.file is None:
        return shown
    write_output(options.file, shown)
    say(f"the table is in {options.file}")
    return None


def _rows(options: ReportOptions, analysis: Analysis) -> str | Callable[..., Answer]:
    """The wanted rows as text in their format; without one the answer, which takes its `page`."""
    chosen = select_rows(analysis, options)
    format = options.rows_format
    if format is None:
        return partial(report_answer, chosen, columns=options.columns, verbose=options.verbose)
    warn(*chosen.warnings)
    for note in () if format in DATA_FORMATS else chosen.notes:
        print(note, file=sys.stderr)
    return rows_text(chosen.rows, format=format, columns=options.columns)


def _collectives(options: ReportOptions, stored: Collectives) -> str | Callable[..., Answer]:
    """The same for collectives, whose table has all columns."""
    from dpbench.analysis.frames import collective_frame

    chosen = select_collectives(stored, options)
    format = options.rows_format or ("csv" if options.columns else None)
    if format is None:
        return partial(collectives_answer, chosen)
    if options.rows_format is None and (options.output or options.open):
        raise UsageError(
            "--columns: the page of collectives has all columns; leave it out, or write rows "
            "with --output FILE.csv"
        )
    warn(*chosen.warnings)
    return frame_text(collective_frame(chosen.records), format, options.columns)


def _report_page(
    options: ReportOptions,
    path: Path,
    results: Analysis | Collectives,
    answer: Callable[..., Answer],
) -> Answer:
    """The `answer`, which takes the path of the page; that is written, and opened."""
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


def select_rows(analysis: Analysis, wanted: RowFilter) -> Analysis:
    """The analysis with the wanted rows alone, whose references stay; raises UsageError if there
    are none."""
    kept = tuple(row for row in analysis.rows if wanted.keeps(row))
    if analysis.rows and not kept:
        there = wanted.choices(analysis.rows)
        raise UsageError(f"{analysis.name}: no such row; there are {there}")
    explanations = tuple(one for one in analysis.explanations if wanted.keeps(one.row))
    return replace(analysis, rows=kept, explanations=explanations)


def select_collectives(collectives: Collectives, wanted: RowFilter) -> Collectives:
    """The wanted collectives alone; raises UsageError if there are none."""
    records = collectives.records
    backends = dict.fromkeys(record.spec.backend for record in records)
    sizes = sorted({record.spec.group_size for record in records})
    kept = tuple(
        record
        for record in records
        if not (wanted.implementations or wanted.batch_sizes)  # which no collective has
        if record.spec.backend in (wanted.backends or backends)
        if record.spec.group_size in (wanted.group_sizes or sizes)
    )
    if records and not kept:
        there = f"--backends {', '.join(backends)}; --group-sizes {', '.join(map(str, sizes))}"
        raise UsageError(f"{collectives.name}: no such row; there are {there}")
    return replace(collectives, records=kept)

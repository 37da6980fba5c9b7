"""Prints results, for `dpbench report` and for commands that measure."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from dpbench.files import write_output
from dpbench.messages import print_result, say, warn

if TYPE_CHECKING:
    from dpbench.analysis.analyze import Analysis
    from dpbench.options.comm import CommOptions
    from dpbench.options.sweep import SweepOptions
    from dpbench.store import StoredCollectives, StoredSweep


def show_rows(
    analysis: Analysis, format: str, columns: str | None = None, file: Path | None = None
) -> None:
    """Prints the rows in a format for documents or programs, or writes them to a file; notes go
    to stderr."""
    from dpbench.report import DATA_FORMATS
    from dpbench.report.configurations import rows_text
    from dpbench.report.export import frame_text
    from dpbench.report.notes import notes_of

    is_data = format in DATA_FORMATS
    warn(*analysis.unfinished, *(analysis.stored.warnings if is_data and analysis.stored else ()))
    if analysis.collectives:
        from dpbench.analysis.frames import collective_frame

        text = frame_text(collective_frame(analysis.collectives.records), format, columns)
    else:
        text = rows_text(analysis.rows, format=format, columns=columns)
    for note in () if is_data else notes_of(analysis):
        print(note, file=sys.stderr)
    if file is None:
        print_result(text)
    else:
        write_output(file, text)


def show(
    analysis: Analysis,
    *,
    page: Path | None,
    columns: str | None = None,
    to_explain: Path | str | None = None,
    verbose: bool = False,
) -> None:
    """Prints results for people, and where their `page` is; raises UsageError for `columns`."""
    from dpbench.report.answers.comm import comm_answer
    from dpbench.report.answers.report import report_answer

    if (stored := analysis.collectives) is not None:
        answer = comm_answer(stored, page=page)
    else:
        answer = report_answer(
            analysis, columns=columns, page=page, to_explain=to_explain, verbose=verbose
        )
    print_result(answer.text)
    warn(*(stored.warnings if stored else ()))


def show_measured(
    stored: StoredSweep | StoredCollectives,
    options: CommOptions | SweepOptions,
    *,
    to_explain: Path | str | None = None,
    verbose: bool = False,
) -> None:
    """Prints what was measured, and writes its page; says where the output of failures is."""
    from dpbench.analysis.analyze import analyze
    from dpbench.records.trial import Status
    from dpbench.report.page import page_path, write_page
    from dpbench.store import LOGS_FOLDER

    analysis, page = analyze(stored), page_path(stored.folder)
    if options.as_json:
        show_rows(analysis, "json")
        say(f"records are in {stored.folder}")
    else:
        show(analysis, page=page, to_explain=to_explain, verbose=verbose)
    write_page(page, analysis, charts=options.charts)
    logs, fine = stored.folder / LOGS_FOLDER, (Status.COMPLETED, Status.SKIPPED)
    if logs.is_dir() and any(record.status not in fine for record in stored.records):
        say(f"the output of trials that failed is in {logs}")

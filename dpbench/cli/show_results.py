"""Prints results, for `dpbench report` and for commands that measure."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from dpbench.files import write_output
from dpbench.messages import print_result, warn

if TYPE_CHECKING:
    from dpbench.analysis.subject import Subject


def show_rows(
    subject: Subject, format: str, columns: str | None = None, file: Path | None = None
) -> None:
    """Prints the rows in a format for documents or programs, or writes them to a file; notes go
    to stderr."""
    from dpbench.report.footnotes import footnotes
    from dpbench.report.tables import DATA_FORMATS, frame_text, rows_text

    warn(*subject.unfinished, *(subject.stored.warnings if subject.stored else ()))
    if subject.collectives:
        from dpbench.analysis.frames import collective_frame

        text = frame_text(collective_frame(subject.collectives.records), format, columns)
    else:
        text = rows_text(subject.rows, format=format, columns=columns)
    for note in () if format in DATA_FORMATS else footnotes(subject.rows):
        print(note, file=sys.stderr)
    if file is None:
        print_result(text)
    else:
        write_output(file, text)


def show(
    subject: Subject,
    *,
    page: Path | None,
    columns: str | None = None,
    to_explain: Path | str | None = None,
    verbose: bool = False,
) -> None:
    """Prints results for people, and where their `page` is; raises UsageError for `columns`."""
    from dpbench.report.collectives import stored_answer
    from dpbench.report.screen import screen
    from dpbench.report.table import table_limit

    if (stored := subject.collectives) is not None:
        found = stored_answer(stored).text
        print_result(f"{found}\nReport: {page}\n" if page else found)
        warn(*stored.warnings)
        return
    print_result(
        screen(
            subject,
            columns=columns,
            width=table_limit(),
            page=page,
            to_explain=to_explain,
            verbose=verbose,
        )
    )

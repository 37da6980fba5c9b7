"""`dpbench report`: the verdict, one warning, the table, and where to read on."""

from __future__ import annotations

from pathlib import Path

from dpbench import units
from dpbench.analysis.diagnosis.explanation import not_too_noisy, trained_together
from dpbench.analysis.subject import Subject
from dpbench.messages import one_line
from dpbench.records.trial import Status
from dpbench.report import notes
from dpbench.report.answer import Answer
from dpbench.report.configurations import terminal_table
from dpbench.report.headline import headline_sentences
from dpbench.report.table import unbroken

MAX_REASONS = 3
"""Reasons of failures, and sources, below the table; --verbose has the others."""


def report_answer(
    subject: Subject,
    *,
    columns: str | None = None,
    page: Path | None = None,
    to_explain: Path | str | None = None,
    verbose: bool = False,
) -> Answer:
    """Whether trials are missing, the verdict, at most one warning, the table, why rows failed or
    who measured them, how many repetitions were or would be enough, and below it where the report
    is, what to explain next, and how many notes `verbose` would print.

    Raises UnknownName or UsageError for unknown columns.
    """
    rows = subject.rows
    failed = [row for row in rows if row.status not in (Status.COMPLETED, Status.SKIPPED)]
    failures, sources = notes.row_reasons(failed), notes.sources(rows)
    ends = (
        *failures[:MAX_REASONS],
        *sources[:MAX_REASONS],
        *notes.ties(subject),
        *notes.too_noisy(rows),
        *notes.one_repetition(rows),
    )
    others = (
        *notes.reading_notes(rows),
        *sources[MAX_REASONS:],
        *notes.own_notes(rows),
        *subject.hints,
    )
    headlines = {} if subject.sweep is None else subject.headlines
    alerts = notes.further_warnings(subject)
    lines = [
        *subject.unfinished,
        *headline_sentences(headlines),
        *(f"Warning: {one_line(warning)}" for warning in alerts[:1]),
    ]
    parts = [] if page is None else [f"Report: {page}"]
    if to_explain is not None and trained_together(not_too_noisy(subject.explanations)):
        parts.append(f"Next: dpbench explain {to_explain}")
    details: list[str] = []
    if verbose:
        skipped = notes.row_reasons([row for row in notes.available(rows) if row not in failed])
        details = [*alerts[1:], *others, *failures[MAX_REASONS:], *skipped]
    else:
        hidden = {"more warning": len(alerts[1:]), "note": len(others)}
        waiting = [units.counted(count, name) for name, count in hidden.items() if count]
        if waiting:
            parts.append(f"({', '.join(waiting)}: --verbose)")
    table = terminal_table(rows, columns)
    places = "   ".join(map(unbroken, parts))
    return Answer(paragraphs=("\n".join(lines), table, ends, details, places))

"""What a terminal shows of results: the verdict, one warning, the table, and where to read on."""

from __future__ import annotations

from pathlib import Path

from dpbench import units
from dpbench.analysis.diagnosis.explanation import not_too_noisy, trained_together
from dpbench.analysis.subject import Subject
from dpbench.messages import one_line
from dpbench.records.trial import Status
from dpbench.report.footnotes import notes, reasons, sources, ties, too_noisy, unavailable, warnings
from dpbench.report.headline import headline_sentences
from dpbench.report.table import WIDTH, bullets, filled, side_by_side, table_width
from dpbench.report.tables import rows_text

MOST_REASONS = 3
"""Reasons of failures, and sources, below the table; --verbose has the others."""


def screen(
    subject: Subject,
    *,
    columns: str | None = None,
    width: int | None = None,
    page: Path | None = None,
    to_explain: Path | str | None = None,
    verbose: bool = False,
) -> str:
    """Whether trials are missing, the verdict, at most one warning, the table, why rows failed or
    who measured them, how many repetitions would be enough, and below it where the report is, what
    to explain next, and how many notes `verbose` would print.

    Raises UnknownName or UsageError for unknown columns.
    """
    table = rows_text(subject.rows, columns=columns, width=width)
    failed = [row for row in subject.rows if row.status not in (Status.COMPLETED, Status.SKIPPED)]
    ends = (
        *reasons(failed)[:MOST_REASONS],
        *sources(subject.rows)[:MOST_REASONS],
        *ties(subject),
        *too_noisy(subject.rows),
    )
    said = [one for one in notes(subject) if one not in ends]
    headlines = {} if subject.sweep is None else subject.headlines
    reasons_above = (one.reason for one in headlines.values())
    alerts = warnings(subject, (*subject.unfinished, *reasons_above))
    lines = [
        *subject.unfinished,
        *headline_sentences(headlines),
        *(f"Warning: {one_line(warning)}" for warning in alerts[:1]),
    ]
    narrow = min(width or table_width(), WIDTH)
    parts = [] if page is None else [f"Report: {page}"]
    if to_explain is not None and trained_together(not_too_noisy(subject.explanations)):
        parts.append(f"Next: dpbench explain {to_explain}")
    details: list[str] = []
    if verbose:
        above = {*ends, *unavailable(subject.rows)}
        others = [reason for reason in reasons(subject.rows) if reason not in above]
        details = [*dict.fromkeys((*alerts[1:], *said, *others))]
    else:
        counts = {"more warning": alerts[1:], "note": said}
        waiting = [units.counted(len(of), name) for name, of in counts.items() if of]
        if waiting:
            parts.append(f"({', '.join(waiting)}: --verbose)")
    paragraphs = (
        "\n".join(filled(line, narrow) for line in lines),
        table.rstrip() if subject.rows else "",
        bullets(ends, narrow),
        bullets(details, narrow),
        side_by_side(parts, narrow),
    )
    return "\n\n".join(filter(None, paragraphs)) + "\n"

"""`dpbench report`: the verdict, one warning, the table, and where to read on."""

from __future__ import annotations

from pathlib import Path

from dpbench import units
from dpbench.analysis.diagnosis.explanation import not_too_noisy, trained_together
from dpbench.analysis.subject import Subject
from dpbench.report.answer import Answer
from dpbench.report.configurations import terminal_table
from dpbench.report.headline import headline_sentences
from dpbench.report.notes import notes_of, texts_of
from dpbench.report.table import keep_on_line


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
    notes = notes_of(subject)
    warnings, others = texts_of(notes, "warning"), texts_of(notes, "reading", "skipped")
    first = [
        *subject.unfinished,
        *headline_sentences(subject.headlines if subject.sweep else {}),
        *(f"Warning: {warning}" for warning in warnings[:1]),
    ]
    parts = [] if page is None else [f"Report: {page}"]
    is_explained = trained_together(not_too_noisy(subject.explanations))
    if to_explain is not None and is_explained and not subject.disturbance.is_busy:
        parts.append(f"Next: dpbench explain {to_explain}")
    hidden = {"more warning": len(warnings[1:]), "note": len(others)}
    counts = [units.counted(count, name) for name, count in hidden.items() if count]
    if counts and not verbose:
        parts.append(f"({', '.join(counts)}: --verbose)")
    return Answer(
        paragraphs=(
            "\n".join(first),
            terminal_table(subject.rows, columns),
            texts_of(notes, "failed", "source", "repetitions"),
            [*warnings[1:], *others] if verbose else [],
            "   ".join(map(keep_on_line, parts)),
        )
    )

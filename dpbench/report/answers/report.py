"""`dpbench report`: the verdict, one warning, the table, and where to read on."""

from __future__ import annotations

import shlex
from pathlib import Path

from dpbench import units
from dpbench.analysis.analyze import Analysis
from dpbench.report.answer import Answer
from dpbench.report.answers.comm import comm_answer
from dpbench.report.configurations import terminal_table
from dpbench.report.headline import headline_sentences
from dpbench.report.notes import notes_of
from dpbench.report.table import keep_on_line


def report_answer(
    analysis: Analysis,
    *,
    columns: str | None = None,
    page: Path | None = None,
    to_explain: Path | str | None = None,
    verbose: bool = False,
) -> Answer:
    """Whether trials are missing, the verdict, at most one warning, the table, why rows failed or
    who measured them, how many repetitions were or would be enough, and below it where the report
    is, what to explain next, and how many notes `verbose` would print. Collectives have a table of
    their own.

    Raises UnknownName or UsageError for unknown columns.
    """
    if analysis.collectives:
        return comm_answer(analysis.collectives, page=page)
    warnings, others = notes_of(analysis, "warning"), notes_of(analysis, "reading")
    first = [
        *analysis.unfinished,
        *headline_sentences(analysis.fastest if analysis.sweep else {}),
        *(f"Warning: {warning}" for warning in warnings[:1]),
    ]
    parts = [] if page is None else [f"Report: {page}"]
    is_explained = any(e.trains_together and not e.is_too_noisy for e in analysis.explanations)
    if to_explain is not None and is_explained and not analysis.disturbance.is_busy:
        parts.append(f"Next: dpbench explain {shlex.quote(str(to_explain))}")
    hidden = {"more warning": len(warnings[1:]), "note": len(others)}
    counts = [units.counted(count, name) for name, count in hidden.items() if count]
    if counts and not verbose:
        parts.append(f"({', '.join(counts)}: --verbose)")
    return Answer(
        paragraphs=(
            "\n".join(first),
            terminal_table(analysis.rows, columns),
            notes_of(analysis, "failed", "source", "repetitions"),
            [*warnings[1:], *others] if verbose else [],
            "   ".join(map(keep_on_line, parts)),
        )
    )

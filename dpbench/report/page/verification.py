"""Whether gradients were proved right, as the page says it."""

from __future__ import annotations

from collections.abc import Iterator

from dpbench import units
from dpbench.analysis.outcome import effective_status
from dpbench.analysis.subject import Subject
from dpbench.records import Status
from dpbench.report.footnotes import some_of
from dpbench.report.page.content import Finding


def proof(subject: Subject) -> Finding | None:
    """How many configurations have the gradients of one process; None where none was measured."""
    measured = [row for row in subject.rows if row.configuration and row.throughput]
    judged = [row for row in subject.rows if row.verified is not None]
    if subject.sweep is None or not (measured or judged):
        return None
    title = "Right gradients"
    if subject.synthetic:
        about = "synthetic: numbers from a cost model, nothing was run and nothing compared"
        return Finding(title=title, value="not checked", about=about)
    if not judged:
        about = "no record has a comparison with one process"
        return Finding(title=title, value="not checked", about=about)
    checks = [
        record.verification
        for record in subject.sweep.records
        if record.verification is not None and effective_status(record) is Status.COMPLETED
    ]
    dtypes = sorted({check.dtype for check in checks}, reverse=True) or ["float64"]
    about = f"compared in {' or '.join(dtypes)} with one process that holds the whole batch"
    if checks:
        worst = max(check.max_relative_error for check in checks)
        tolerances = sorted({check.tolerance for check in checks})
        allowed = " or ".join(f"{tolerance:.2g}" for tolerance in tolerances)
        about += f"; the largest relative error is {worst:.2g}, {allowed} is allowed"
    right = sum(row.verified is True for row in judged)
    whole = len({row.configuration for row in (*measured, *judged)})
    value = f"{right:,} of {units.counted(whole, 'configuration')}"
    return Finding(title=title, value=value, about=about)


def doubts(subject: Subject) -> Iterator[str]:
    """Which were wrong, which nobody checked."""
    if wrong := [row.label for row in subject.rows if row.verified is False]:
        yield f"wrong gradients, and no speed of theirs counts: {some_of(wrong)}"
    unchecked = [
        row.label
        for row in subject.rows
        if row.configuration and row.throughput and row.verified is None
    ]
    if unchecked:
        yield f"gradients were not compared with one process: {some_of(unchecked)}"

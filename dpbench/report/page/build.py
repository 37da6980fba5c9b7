"""Builds the page from analysed subjects: what it says, not how it looks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from dpbench import __version__, units
from dpbench.analysis.fields.levels import COLUMNS
from dpbench.analysis.outcome import effective_status
from dpbench.analysis.subject import Subject
from dpbench.messages import one_line
from dpbench.records import Status
from dpbench.report.explanation import advice_lines
from dpbench.report.footnotes import footnotes, reasons
from dpbench.report.headline import findings
from dpbench.report.page.command import command_of
from dpbench.report.page.comparison import comparison
from dpbench.report.page.content import Finding, Page, SweepContent
from dpbench.report.page.environment import facts_of, in_short
from dpbench.report.page.pictures import Pictures
from dpbench.report.page.results_table import empty_columns, failures_table, results_table
from dpbench.report.page.sections import not_drawn, sections
from dpbench.report.table import Table
from dpbench.report.warnings import warnings

MOST_ADVICE = 3
"""Sentences of advice at the top; the section on time has all."""


def build_page(
    subjects: Sequence[Subject], pictures: Sequence[Pictures], *, served_as: str | None = None
) -> Page:
    """A page of one subject, or of several beside each other; `pictures` are theirs, in order."""
    return Page(
        title=_title(subjects),
        version=__version__,
        sweeps=tuple(_content(*pair) for pair in zip(subjects, pictures, strict=True)),
        comparison=comparison(subjects) if len(subjects) > 1 else None,
        served_as=served_as,
    )


def _title(subjects: Sequence[Subject]) -> str:
    names = [one_line(subject.name) for subject in subjects]
    return names[0] if len(names) == 1 else f"{len(names)} side by side: {', '.join(names)}"


def _content(subject: Subject, pictures: Pictures) -> SweepContent:
    table = results_table(subject.rows)
    parts = sections(subject, pictures)
    warned = tuple(map(one_line, warnings(subject)))
    return SweepContent(
        name=one_line(subject.name),
        started=_started(subject),
        state=_state(subject),
        about=tuple(map(one_line, in_short(subject))),
        advice=tuple(map(one_line, _advice(subject))),
        findings=tuple(_findings(subject)),
        warnings=warned,
        environment=tuple((name, one_line(value)) for name, value in facts_of(subject)),
        command=command_of(subject),
        results=table,
        notes=tuple(
            note for note in map(one_line, _notes(subject, table, pictures)) if note not in warned
        ),
        failures=failures_table(subject.rows),
        sections=parts,
        not_drawn=not_drawn(parts, pictures),
    )


def _findings(subject: Subject) -> Iterator[Finding]:
    """None where there are no rows: collectives have a section of their own."""
    if not subject.rows and subject.sweep is None:
        return
    yield from findings(subject.headline)
    if (proved := proof(subject)) is not None:
        yield proved


def _advice(subject: Subject) -> Iterator[str]:
    """The sentences about the largest losses; none where nothing is large."""
    if any(subject.advice):
        lines = advice_lines(subject.explanations, subject.advice)
        yield from islice(lines, MOST_ADVICE)


def _notes(subject: Subject, table: Table, pictures: Pictures) -> Iterator[str]:
    """How to read the table; reasons stand in a table of their own."""
    if pictures.left_out is not None:
        yield f"charts are left out: {pictures.left_out}"
    elsewhere = {*reasons(subject.rows)}
    shown = footnotes(subject.rows, [*COLUMNS])
    yield from (note for note in shown if note not in elsewhere)
    yield from subject.hints
    if subject.rows and (empty := empty_columns(table)):
        yield f"not measured, column hidden: {', '.join(empty)}"


def _started(subject: Subject) -> str | None:
    """Start time, as in "2025-01-31 14:05 UTC"."""
    stored = subject.sweep or subject.collectives
    first = min((record.started_utc for record in stored.records), default="") if stored else ""
    return f"{first[:10]} {first[11:16]} UTC" if first else None


def _state(subject: Subject) -> str:
    if subject.sweep is None:
        if subject.collectives is None:
            return units.counted(len(subject.rows), "published row")
        return units.counted(len(subject.collectives.records), "measurement") + " of collectives"
    done = len({record.trial.trial_id for record in subject.sweep.records})
    if subject.planned is None or done > subject.planned:
        trials = units.counted(done, "trial")
    else:
        trials = f"{done:,} of {units.counted(subject.planned, 'trial')}"
    if subject.running:
        return f"{trials}, running"
    if subject.planned is not None and done < subject.planned:
        return f"{trials}; the rest was not run: the same command with --name and --resume goes on"
    return trials


def proof(subject: Subject) -> Finding | None:
    """How many configurations have the gradients of one process; None where none was measured."""
    measured = [row for row in subject.rows if row.configuration and row.throughput]
    judged = [row for row in subject.rows if row.verified is not None]
    if subject.sweep is None or not (measured or judged):
        return None
    title = "Gradients verified"
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

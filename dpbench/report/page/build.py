"""Builds the page from analysed subjects: its head, its results and its sections; `html` lays them
out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

from dpbench import __version__, units
from dpbench.analysis.configuration import ConfigurationSummary, effective_status
from dpbench.analysis.fields import Ending
from dpbench.analysis.levels import COLUMNS
from dpbench.analysis.subject import Subject
from dpbench.messages import one_line
from dpbench.records.environment import SYNTHETIC_NOTE
from dpbench.records.trial import Status
from dpbench.report.explanation import advice_lines
from dpbench.report.footnotes import footnotes, reasons, warnings
from dpbench.report.headline import findings
from dpbench.report.page.content import Finding, Page, SweepContent
from dpbench.report.page.environment import command_of, facts_of, in_short
from dpbench.report.page.pictures import Pictures
from dpbench.report.page.sections import not_drawn, sections
from dpbench.report.table import (
    MISSING,
    Table,
    TableColumn,
    TableRow,
    text_column,
    whole,
    words,
)
from dpbench.report.tables import Column, claim_columns, header_of, with_units
from dpbench.report.values import table_of

MOST_ADVICE = 3
"""Sentences of advice at the top; the section on time has all."""
Rows = Sequence[ConfigurationSummary]


def build_page(subject: Subject, pictures: Pictures) -> Page:
    """The page of a subject with its pictures."""
    return Page(
        title=one_line(subject.name),
        version=__version__,
        sweep=_content(subject, pictures),
    )


def _content(subject: Subject, pictures: Pictures) -> SweepContent:
    table = results_table(subject.rows)
    parts = sections(subject, pictures)
    warned = tuple(map(one_line, warnings(subject)))
    return SweepContent(
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
    yield from findings(subject.headlines)
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
        about = f"{SYNTHETIC_NOTE}, and nothing compared"
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


STATUS = TableColumn(
    key="status",
    header="Status",
    meaning="How the configuration ended; why it did not complete stands in a table of its own.",
    text=True,
)
"""The status alone; its reason may be long."""


def results_table(rows: Rows) -> Table:
    """A row a configuration; cells say what the tables in other formats say, and are sorted by
    the values of the JSON rows."""
    columns = _columns(rows)
    table = table_of(columns, rows, key="configurations", caption="Configurations")
    shown = (
        STATUS
        if column.key == STATUS.key
        else replace(
            column,
            header=header_of(column.header, rows),
            shown=_is_shown(field, table.texts(place)),
        )
        for place, (field, column) in enumerate(zip(columns, table.columns, strict=True))
    )
    lines = (
        replace(line, status=row.status.value, work=row.work)
        for row, line in zip(rows, table.rows, strict=True)
    )
    return with_units(replace(table, columns=tuple(shown), rows=tuple(lines)), rows)


def _columns(rows: Rows) -> Sequence[Column]:
    """Columns in the usual order, but for the status, which must not be scrolled out of sight."""
    usual = [column for column in COLUMNS.values() if column.key != STATUS.key]
    place = usual.index(COLUMNS["efficiency"]) + 1
    status = replace(COLUMNS[STATUS.key], read=lambda row: Ending(row.status, None))
    return (*usual[:place], status, *usual[place:], *claim_columns(rows))


def _is_shown(column: Column, texts: Sequence[str]) -> bool:
    """Usual ones with a value somewhere; of no rows at all, those that every sweep has."""
    if not texts:
        return column.shown == "always"
    return column.shown != "on request" and any(text != MISSING for text in texts)


def empty_columns(table: Table) -> tuple[str, ...]:
    """The headers of usual columns that have no value anywhere."""
    return tuple(
        column.header
        for column in table.columns
        if not column.shown and (known := COLUMNS.get(column.key)) and known.shown == "always"
    )


def failures_table(rows: Rows) -> Table | None:
    """Configurations that failed or were skipped, wholly or in part, with the full reason."""
    ended = [row for row in rows if row.status is not Status.COMPLETED or row.reason]
    if not ended:
        return None
    return Table(
        key="failures",
        caption="Configurations that did not complete, or not in all repetitions",
        columns=(
            text_column("Configuration"),
            STATUS,
            TableColumn(
                key="repetitions", header="Repetitions", meaning=COLUMNS["repetitions"].meaning
            ),
            text_column("Reason", "The first cause that is known."),
        ),
        rows=tuple(
            TableRow(
                cells=(
                    words(row.label),
                    words(row.status.words),
                    whole(row.repetitions),
                    words(row.reason or MISSING),
                ),
                status=row.status.value,
            )
            for row in ended
        ),
    )

"""The sections of the page: a question each, with charts, tables and notes that answer it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from dpbench import units
from dpbench.analysis.diagnosis.advice import LARGE
from dpbench.analysis.subject import Subject
from dpbench.messages import one_line
from dpbench.report.collectives import collective_notes, collectives_table
from dpbench.report.explanation import advice_lines, reading
from dpbench.report.explanation import tables as explanation_tables
from dpbench.report.numbers import percentage
from dpbench.report.page.content import Section
from dpbench.report.page.pictures import Pictures
from dpbench.report.table import Table, TableCell, TableColumn, TableRow, text_column, words

SECTION_TITLES = {
    "scaling": "How well does it scale?",
    "speed": "What does the speed depend on?",
    "time": "Where does the time go?",
    "learning": "Do they learn alike?",
    "communication": "What does communication cost?",
    "projection": "What would more replicas give?",
}
OPEN_SECTIONS = ("scaling",)
"""The chart that most readers come for; the titles of the others say what is in them."""


def sections(subject: Subject, pictures: Pictures) -> tuple[Section, ...]:
    """Sections with content; each names the charts that it lacks."""
    tables = {
        "time": (*_advice(subject), *explanation_tables(subject.explanations)),
        "communication": tuple(_collectives(subject)),
    }
    notes = {
        "time": tuple(_time_notes(subject)),
        "learning": tuple(_learning_notes(subject)),
        "communication": tuple(collective_notes(subject.collectives))
        if subject.collectives
        else (),
    }
    found = (
        Section(
            key=key,
            title=title,
            charts=tuple(image for kind, image in pictures.drawn if kind.section == key),
            tables=tables.get(key, ()),
            notes=tuple(map(one_line, notes.get(key, ()))),
            folded=key not in OPEN_SECTIONS,
        )
        for key, title in SECTION_TITLES.items()
    )
    return tuple(
        replace(
            one,
            notes=(
                *one.notes,
                *(f"no chart {charts}: {why}" for why, charts in _absent([one.key], pictures)),
            ),
        )
        for one in found
        if one.charts or one.tables or one.notes
    )


def not_drawn(sections: Sequence[Section], pictures: Pictures) -> str | None:
    """The charts of the questions that have no section, in one line."""
    missing = SECTION_TITLES.keys() - {section.key for section in sections}
    listed = "; ".join(f"{charts} ({reason})" for reason, charts in _absent(missing, pictures))
    return f"Not drawn: {listed}." if listed else None


def _absent(keys: Collection[str], pictures: Pictures) -> Iterator[tuple[str, str]]:
    """(Reason, charts that have nothing to show for it)."""
    titles: dict[str, list[str]] = {}
    for kind, reason in pictures.absent:
        if kind.section in keys:
            titles.setdefault(one_line(reason), []).append(f"“{kind.title}”")
    for reason, charts in titles.items():
        yield reason, ", ".join(charts)


def _time_notes(subject: Subject) -> Iterator[str]:
    if subject.explanations:
        if not any(subject.advice):
            yield from advice_lines(subject.explanations, subject.advice)
        yield from reading(subject.explanations)


def _learning_notes(subject: Subject) -> Iterator[str]:
    yield from subject.loss_notes


def _advice(subject: Subject) -> Iterator[Table]:
    """The largest loss first."""
    found = [
        (explanation.row.label, one)
        for explanation, lines in zip(subject.explanations, subject.advice, strict=True)
        for one in lines
    ]
    if not found:
        return
    yield Table(
        key="advice",
        caption="What costs most, and what to try",
        columns=(
            text_column("Configuration"),
            TableColumn(
                key="cost",
                header="Cost",
                meaning="Share of a step's seconds that the loss takes; only what is beyond the "
                f"noise and at least {units.exact_percent(LARGE)} is listed.",
            ),
            text_column("Loss"),
            text_column("What to do", key="remedy"),
        ),
        rows=tuple(
            TableRow(
                cells=(
                    words(label),
                    TableCell(text=percentage(one.share), sort=one.share.value),
                    words(one.loss),
                    words(one.remedy),
                )
            )
            for label, one in sorted(found, key=lambda pair: -pair[1].share.value)
        ),
    )


def _collectives(subject: Subject) -> Iterator[Table]:
    if subject.collectives is not None:
        table = collectives_table(subject.collectives)
        if table.rows:
            yield table

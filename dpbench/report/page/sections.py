"""The questions that a sweep answers, each with its charts, its tables and what is to be said."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from dpbench.analysis.advice import LARGE
from dpbench.analysis.explanation import Explanation
from dpbench.analysis.subject import Subject
from dpbench.report.cells import one_line, percentage
from dpbench.report.explanation import advice_lines, reading, telling
from dpbench.report.explanation_columns import EFFICIENCY, PHASE_TIMES, STEP, ExplanationColumn
from dpbench.report.numbers import MISSING
from dpbench.report.page.collectives import collective_notes, collectives_table
from dpbench.report.page.content import Section, Table, TableCell, TableColumn, TableRow
from dpbench.report.page.pictures import Pictures
from dpbench.report.page.results_table import sort_value, words

TITLES = {
    "speed": "What does the speed depend on?",
    "scaling": "How well does it scale?",
    "time": "Where does the time go?",
    "learning": "Do they learn alike?",
    "communication": "What does communication cost?",
    "projection": "What would more replicas give?",
}


def sections(subject: Subject, pictures: Pictures) -> tuple[Section, ...]:
    """Those that have something to say; each names the charts that have nothing to show."""
    tables = {
        "time": (*_advice(subject), *_explaining(subject.explanations)),
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
            notes=tuple(map(one_line, (*notes.get(key, ()), *_absent(key, pictures)))),
        )
        for key, title in TITLES.items()
    )
    return tuple(one for one in found if one.charts or one.tables or one.notes)


def _absent(key: str, pictures: Pictures) -> Iterator[str]:
    for kind, reason in pictures.absent:
        if kind.section == key:
            yield f"no chart “{kind.title}”: {reason}"


def _time_notes(subject: Subject) -> Iterator[str]:
    if subject.explanations:
        if not any(subject.advice):
            yield from advice_lines(subject.explanations, subject.advice)
        yield from reading(subject.explanations)


def _learning_notes(subject: Subject) -> Iterator[str]:
    yield from subject.loss_notes
    if any(row.loss_at_equal_samples for row in subject.rows):
        yield from subject.budget_notes


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
            TableColumn(key="configuration", header="Configuration", meaning="", text=True),
            TableColumn(
                key="cost",
                header="Cost",
                meaning="Share of a step's seconds that the loss takes; only what is beyond the "
                f"noise and at least {LARGE:.0%} is listed.",
            ),
            TableColumn(key="loss", header="Loss", meaning="", text=True),
            TableColumn(key="try", header="Try", meaning="", text=True),
        ),
        rows=tuple(
            TableRow(
                cells=(
                    words(label),
                    TableCell(text=percentage(one.share), sort=one.share.value),
                    *map(words, _loss_and_remedy(one.text)),
                )
            )
            for label, one in sorted(found, key=lambda pair: -pair[1].share.value)
        ),
    )


def _loss_and_remedy(text: str) -> tuple[str, str]:
    """Of "exposed communication on gloo: try shm" both sides of the colon."""
    loss, colon, remedy = text.partition(": ")
    return loss, remedy.removeprefix("try ") if colon else MISSING


def _explaining(explanations: Sequence[Explanation]) -> Iterable[Table]:
    if not explanations:
        return
    yield _table(
        "factors", "Efficiency and the factors that multiply to it", explanations, EFFICIENCY
    )
    yield _table("steps", "A step: communication, traffic, skew", explanations, STEP)
    if phased := [one for one in explanations if one.phases]:
        yield _table("phases", "Phases of a step", phased, PHASE_TIMES)


def _table(
    key: str,
    caption: str,
    explanations: Sequence[Explanation],
    columns: Sequence[ExplanationColumn],
) -> Table:
    shown = telling(explanations, columns)
    return Table(
        key=key,
        caption=caption,
        columns=tuple(
            TableColumn(
                key=(header := " ".join(column.header.replace("\n/", "/").split())).lower(),
                header=header,
                meaning=column.meaning,
                text=place == 0,
            )
            for place, column in enumerate(shown)
        ),
        rows=tuple(
            TableRow(
                cells=tuple(
                    TableCell(
                        text=one_line(column.cell(explanation)),
                        sort=sort_value(column.value(explanation)),
                    )
                    for column in shown
                )
            )
            for explanation in explanations
        ),
    )


def _collectives(subject: Subject) -> Iterator[Table]:
    if subject.collectives is not None:
        table = collectives_table(subject.collectives)
        if table.rows:
            yield table

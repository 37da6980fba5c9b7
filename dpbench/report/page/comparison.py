"""Several subjects beside each other: what was measured in more than one, and what differs.

Ratios are those of `dpbench compare`, each against the first sweep; where two sweeps must not be
compared their numbers stand without one, and a note says why.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from dpbench import units
from dpbench.analysis.comparisons.comparability import check_environments, environment_differences
from dpbench.analysis.comparisons.comparison import WITHIN, Comparison, compare
from dpbench.analysis.comparisons.matching import Side, match
from dpbench.analysis.configuration import ConfigurationSummary
from dpbench.analysis.fields.levels import METRICS
from dpbench.analysis.headline import trains_together
from dpbench.analysis.subject import Subject
from dpbench.errors import DpbenchError
from dpbench.messages import one_line
from dpbench.records.trial import Status
from dpbench.report.comparison import outcome_words
from dpbench.report.headline import speed_of
from dpbench.report.numbers import plus_minus
from dpbench.report.page.content import Section
from dpbench.report.page.environment import SOURCE, facts_of
from dpbench.report.table import (
    MISSING,
    NOTHING,
    Table,
    TableCell,
    TableColumn,
    TableRow,
    text_column,
    whole,
    words,
)

METRIC = METRICS["images_per_second"]


Work = tuple[str, str | None, int, int]
"""Which of the works of its sweep, backend, group size, batch size."""
WORK = ("Workload", "CPU", "GPUs")
"""Facts that decide whether two speeds are of the same work."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Ratios:
    """A sweep against the first one."""

    name: str
    found: Mapping[str, Comparison]
    """Comparisons by the label of the configuration."""
    notes: tuple[str, ...]


def comparison(subjects: Sequence[Subject]) -> Section:
    """The section that stands before the subjects; two at least."""
    sweeps = [subject for subject in subjects if subject.sweep and subject.sweep.records]
    ratios = [_ratios(sweeps[0], other) for other in sweeps[1:]]
    tables = (_speeds(subjects, ratios), by_work(subjects), differences(subjects))
    return Section(
        key="comparison",
        title="How do they compare?",
        tables=tuple(table for table in tables if table is not None),
        notes=tuple(map(one_line, _notes(subjects, sweeps, ratios))),
    )


def _ratios(first: Subject, other: Subject) -> _Ratios:
    try:
        matched = match(_side(first), _side(other))
    except DpbenchError as refused:
        said = f"no ratios to {first.name}; dpbench compare says: {refused}"
        return _Ratios(name=other.name, found={}, notes=(said,))
    if different := environment_differences(matched):
        said = f"no ratios to {first.name}, as environments differ: {'; '.join(different)}"
        return _Ratios(name=other.name, found={}, notes=(said,))
    notes = check_environments(matched)
    rows = compare(matched, METRIC)
    return _Ratios(name=other.name, found={row.label: row for row in rows}, notes=notes)


def _side(subject: Subject) -> Side:
    assert subject.sweep is not None
    return Side(
        label=subject.name,
        records=subject.sweep.records,
        environments=subject.sweep.environments,
        source=str(subject.sweep.folder.resolve()),
    )


def _speeds(subjects: Sequence[Subject], ratios: Sequence[_Ratios]) -> Table | None:
    """Configurations that more than one sweep has, by what they are called; published ones may be
    called alike and be another model."""
    named = [(one.name, {row.label: row for row in one.rows}) for one in subjects if one.sweep]
    labels = dict.fromkeys(label for _, rows in named for label in rows)
    common = [label for label in labels if _is_shared([rows.get(label) for _, rows in named])]
    if not common:
        return None
    sharing = [(name, rows) for name, rows in named if not rows.keys().isdisjoint(common)]
    unit = _unit(row for _, rows in sharing for row in rows.values())
    related = [one for one in ratios if one.found]
    return Table(
        key="shared",
        caption="Speeds of what was measured in more than one",
        columns=(
            text_column("Configuration"),
            *(_speed_column(k, f"{name}{unit}") for k, (name, _) in enumerate(sharing)),
            *(column for k, one in enumerate(related) for column in _pair(k, one)),
        ),
        rows=tuple(
            TableRow(
                cells=(
                    words(label),
                    *(_speed(rows.get(label), unit) for _, rows in sharing),
                    *(cell for one in related for cell in _ratio(one.found.get(label))),
                )
            )
            for label in common
        ),
    )


def _is_shared(rows: Sequence[ConfigurationSummary | None]) -> bool:
    """Whether there is a speed, and beside it another or why there is none."""
    speeds = [row for row in rows if row and row.throughput]
    without = [row for row in rows if row and row.status is not Status.COMPLETED]
    return bool(speeds) and len(speeds) + len(without) > 1


def _unit(rows: Iterable[ConfigurationSummary]) -> str:
    """Common unit of all speeds, for the header: " (images/s)"; empty if they have several."""
    units = {row.throughput.unit for row in rows if row.throughput}
    unit = one_line(units.pop()) if len(units) == 1 else ""
    return f" ({unit})" if unit.endswith("/s") else ""


def _speed_column(place: int, header: str) -> TableColumn:
    return TableColumn(
        key=f"speed-{place}",
        header=one_line(header),
        meaning="Speed there, in items per second.",
    )


def _pair(place: int, one: _Ratios) -> tuple[TableColumn, TableColumn]:
    name = one_line(one.name)
    return (
        TableColumn(
            key=f"slowdown-{place}",
            header=f"Slow-down of {name}",
            meaning="Speed in the first sweep ÷ speed in this one, with its 95 % interval over "
            "whole runs; above 1 this one is slower.",
        ),
        text_column(
            f"{name} is",
            f"What the interval says: the same within {units.exact_percent(WITHIN)}, faster or "
            "slower (p < 0.05, corrected for the number of rows), or inconclusive.",
        ),
    )


def _ratio(row: Comparison | None) -> tuple[TableCell, TableCell]:
    if row is None:
        return NOTHING, NOTHING
    ratio = NOTHING
    if row.slowdown is not None:
        ratio = TableCell(text=plus_minus(row.slowdown), sort=row.slowdown.value)
    return ratio, words(outcome_words(row, WITHIN))


def _speed(row: ConfigurationSummary | None, unit: str) -> TableCell:
    """Writes the speed, without the unit if the header has it."""
    if row is None:
        return NOTHING
    if row.throughput is None:
        return NOTHING if row.status is Status.COMPLETED else words(row.status.words)
    return TableCell(text=speed_of(row.throughput, header=unit), sort=row.throughput.value)


def _notes(
    subjects: Sequence[Subject], sweeps: Sequence[Subject], ratios: Sequence[_Ratios]
) -> Iterator[str]:
    if any(one.found for one in ratios):
        yield (
            f"slow-downs are against {sweeps[0].name}: speed there ÷ speed here; above 1 it is "
            "slower here"
        )
    for one in ratios:
        yield from (f"{one.name}: {note}" for note in one.notes)
    for subject in subjects:
        if subject.sweep is None and subject.rows:
            yield (
                f"{subject.name} holds published numbers: their model and machine are not known "
                "here, so that equal sizes need not be equal work, and they have no ratio"
            )


def by_work(subjects: Sequence[Subject]) -> Table | None:
    """A row for what a published subject and another one have; None if there is nothing."""
    fastest = [_fastest_by_work(subject.rows) for subject in subjects]
    published = {
        work: None
        for subject, rows in zip(subjects, fastest, strict=True)
        if subject.sweep is None
        for work in rows
    }
    common = [work for work in published if sum(work in rows for rows in fastest) > 1]
    if not common:
        return None
    return Table(
        key="by-work",
        caption="The fastest implementation of each, by backend, group size and batch size",
        columns=(
            text_column("Backend"),
            TableColumn(key="group", header="Group", meaning="Number of replicas."),
            TableColumn(key="batch", header="Batch", meaning="Samples of a replica."),
            *(
                TableColumn(
                    key=f"fastest-{k}",
                    header=one_line(subject.name),
                    meaning="The fastest implementation there and its speed.",
                )
                for k, subject in enumerate(subjects)
            ),
        ),
        rows=tuple(
            TableRow(
                cells=(
                    words(work[1] or MISSING),
                    whole(work[2]),
                    whole(work[3]),
                    *(_named_speed(rows.get(work)) for rows in fastest),
                )
            )
            for work in sorted(common, key=str)
        ),
    )


def _fastest_by_work(rows: Sequence[ConfigurationSummary]) -> dict[Work, ConfigurationSummary]:
    fastest: dict[Work, ConfigurationSummary] = {}
    for row in rows:
        if row.throughput is None or row.batch_size is None or not trains_together(row):
            continue
        work = (row.work, row.backend, row.group_size, row.batch_size)
        best = fastest.get(work)
        if best is None or best.throughput is None or row.throughput.value > best.throughput.value:
            fastest[work] = row
    return fastest


def _named_speed(row: ConfigurationSummary | None) -> TableCell:
    if row is None or row.throughput is None:
        return NOTHING
    text = f"{speed_of(row.throughput)} ({one_line(row.implementation)})"
    return TableCell(text=text, sort=row.throughput.value)


def differences(subjects: Sequence[Subject]) -> Table | None:
    """Known differences in what was trained and on what; for published numbers, also what they do
    not state about equal work."""
    known = [dict(facts_of(subject)) for subject in subjects]
    names = dict.fromkeys(name for facts in known for name in facts)
    values = {name: {facts[name] for facts in known if name in facts} for name in names}
    published = any(not (subject.sweep or subject.collectives) for subject in subjects)
    untold = WORK if published else ()
    different = [
        name for name in names if name != SOURCE and (len(values[name]) > 1 or name in untold)
    ]
    if not different:
        return None
    return Table(
        key="differences",
        caption="What differs between them",
        columns=(
            text_column("What"),
            *(text_column(one_line(s.name), key=f"of-{k}") for k, s in enumerate(subjects)),
        ),
        rows=tuple(
            TableRow(cells=(words(name), *(words(_value(facts, name)) for facts in known)))
            for name in different
        ),
    )


def _value(facts: Mapping[str, str], name: str) -> str:
    return facts.get(name, "not recorded" if SOURCE in facts else MISSING)

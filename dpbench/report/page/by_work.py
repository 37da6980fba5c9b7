"""Subjects beside published numbers, whose implementations are called otherwise: the fastest of
each."""

from __future__ import annotations

from collections.abc import Sequence

from dpbench.analysis.configuration import ConfigurationSummary
from dpbench.analysis.headline import trains_together
from dpbench.analysis.subject import Subject
from dpbench.printable import one_line
from dpbench.report.headline import speed_of
from dpbench.report.table import (
    MISSING,
    NOTHING,
    Table,
    TableCell,
    TableColumn,
    TableRow,
    text_column,
    words,
)

Work = tuple[str | None, int, int]
"""Backend, group size, batch size."""


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
                    words(work[0] or MISSING),
                    TableCell(text=str(work[1]), sort=float(work[1])),
                    TableCell(text=str(work[2]), sort=float(work[2])),
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
        work = (row.backend, row.group_size, row.batch_size)
        best = fastest.get(work)
        if best is None or best.throughput is None or row.throughput.value > best.throughput.value:
            fastest[work] = row
    return fastest


def _named_speed(row: ConfigurationSummary | None) -> TableCell:
    if row is None or row.throughput is None:
        return NOTHING
    text = f"{speed_of(row.throughput)} ({one_line(row.implementation)})"
    return TableCell(text=text, sort=row.throughput.value)

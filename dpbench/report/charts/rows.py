"""Configurations as rows of bars, one panel per group size and batch size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dpbench import units
from dpbench.analysis.row import Row
from dpbench.messages import one_line
from dpbench.records.trial import TrialRecord
from dpbench.report.charts.source import ChartSource
from dpbench.report.charts.style import MOST_PANELS, SeriesName, series_of

MOST_LINES = 30


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Measured:
    """A row of the table, and what was measured for it."""

    row: Row
    records: tuple[TrialRecord, ...]
    """Usable repetitions of the configuration; none for published numbers."""

    @property
    def name(self) -> str:
        """Name within its case: "ddp/gloo"."""
        return one_line(self.row.series)

    @property
    def series(self) -> SeriesName:
        return series_of(self.row)


def measured_rows(source: ChartSource) -> tuple[Measured, ...]:
    """Rows in the order of the table."""
    return tuple(Measured(row=row, records=row.records) for row in source.rows)


def cases(found: Sequence[Measured]) -> list[tuple[Measured, ...]]:
    """Rows that ran at the same sizes; the largest groups first, then by batch size."""
    groups: dict[tuple[int, int], list[Measured]] = {}
    for one in found:
        groups.setdefault((-one.row.group_size, one.row.batch_size or 0), []).append(one)
    return [tuple(groups[key]) for key in sorted(groups)]


def cases_that_fit(
    every: Sequence[tuple[Measured, ...]], lines: int = 1
) -> list[tuple[Measured, ...]]:
    """The first cases, as many as a chart has room for if each row takes so many lines; of the very
    first case as many rows."""
    shown: list[tuple[Measured, ...]] = []
    room = MOST_LINES // lines
    for case in every[:MOST_PANELS]:
        if shown and len(case) > room:
            break
        shown.append(case[:room])
        room -= len(case)
    return shown


def case_title(case: Sequence[Measured]) -> str:
    """Names a case: "2 replicas, batch size 32"."""
    row = case[0].row
    batch = "" if row.batch_size is None else f", batch size {row.batch_size:,}"
    return f"{units.counted(row.group_size, 'replica')}{batch}"

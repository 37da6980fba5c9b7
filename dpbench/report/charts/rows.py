"""Measured configurations as rows of bars, one panel per group size and batch size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from dpbench import units
from dpbench.analysis.configuration import (
    ConfigurationSummary,
    by_configuration,
    usable_repetitions,
)
from dpbench.messages import one_line
from dpbench.records.trial import TrialRecord
from dpbench.report.charts.source import ChartSource
from dpbench.report.charts.style import MOST_PANELS
from dpbench.specs import TrialSpec

MOST_ROWS = 30


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Measured:
    """A row of the table that has a speed."""

    row: ConfigurationSummary
    trial: TrialSpec
    records: tuple[TrialRecord, ...]
    """Usable repetitions of the configuration, at least one."""

    @property
    def name(self) -> str:
        """Name within its case: "ddp/gloo"."""
        return one_line(self.row.series)


class HasRow(Protocol):
    """Something that belongs to a row of the table."""

    @property
    def row(self) -> ConfigurationSummary: ...


One = TypeVar("One", bound=HasRow)


def measured_rows(source: ChartSource) -> tuple[Measured, ...]:
    """Rows in the order of the table."""
    groups = by_configuration(source.records)
    return tuple(
        Measured(row=row, trial=trial, records=tuple(usable))
        for row in source.rows
        if (trial := row.configuration) is not None
        and (usable := usable_repetitions(groups.get(trial, [])))
    )


def cases(found: Sequence[One]) -> list[tuple[One, ...]]:
    """Rows that ran at the same sizes; the largest groups first, then by batch size."""
    groups: dict[tuple[int, int], list[One]] = {}
    for one in found:
        groups.setdefault((-one.row.group_size, one.row.batch_size or 0), []).append(one)
    return [tuple(groups[key]) for key in sorted(groups)]


def cases_that_fit(
    every: Sequence[tuple[One, ...]], lines: Callable[[One], int] = lambda _: 1
) -> list[tuple[One, ...]]:
    """The first cases, as many as a chart has room for; of the very first as many rows."""
    shown: list[tuple[One, ...]] = []
    room = MOST_ROWS
    for case in every[:MOST_PANELS]:
        fitting: list[One] = []
        for one in case:
            if (room := room - lines(one)) < 0:
                break
            fitting.append(one)
        if len(fitting) < len(case) and shown:
            break
        shown.append(tuple(fitting))
    return shown


def case_title(case: Sequence[HasRow]) -> str:
    """Names a case: "2 replicas, batch size 32"."""
    row = case[0].row
    batch = "" if row.batch_size is None else f", batch size {row.batch_size:,}"
    return f"{units.counted(row.group_size, 'replica')}{batch}"

"""Measured configurations for charts with one row each, case by case.

A case is a group size at a batch size: what implementations are compared in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from dpbench import units
from dpbench.analysis.configuration import ConfigurationSummary
from dpbench.analysis.outcome import by_configuration, usable_repetitions
from dpbench.messages import one_line
from dpbench.records import TrialRecord
from dpbench.report.charts.curves import evenly
from dpbench.report.charts.source import ChartSource
from dpbench.specs import TrialSpec


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
Case = tuple[Measured, ...]


def measured(source: ChartSource) -> tuple[Measured, ...]:
    """In the order of the table."""
    groups = by_configuration(source.records)
    return tuple(
        Measured(row=row, trial=trial, records=tuple(usable))
        for row in source.rows
        if (trial := row.configuration) is not None
        and (usable := usable_repetitions(groups.get(trial, [])))
    )


def cases(found: Sequence[One]) -> list[tuple[One, ...]]:
    """The largest groups first, as they have most to show; then by batch size."""
    groups: dict[tuple[int, int], list[One]] = {}
    for one in found:
        groups.setdefault((-one.row.group_size, one.row.batch_size or 0), []).append(one)
    return [tuple(groups[key]) for key in sorted(groups)]


def as_many(
    every: Sequence[tuple[One, ...]], most: int, rows: Callable[[tuple[One, ...]], int]
) -> list[tuple[One, ...]]:
    """All cases of the largest group sizes, as many as have `most` rows together.

    Where those of the largest one alone have more: of its batch sizes some, evenly spread; of a
    single case at most that many configurations.
    """
    by_group: dict[int, list[tuple[One, ...]]] = {}
    for case in every:
        by_group.setdefault(case[0].row.group_size, []).append(case)
    shown: list[tuple[One, ...]] = []
    for group in by_group.values():
        if sum(map(rows, [*shown, *group])) > most:
            break
        shown += group
    return shown or _spread(next(iter(by_group.values())), most, rows)


def _spread(
    group: Sequence[tuple[One, ...]], most: int, rows: Callable[[tuple[One, ...]], int]
) -> list[tuple[One, ...]]:
    for count in range(len(group), 1, -1):
        spread = [group[place] for place in evenly(range(len(group)), count)]
        if sum(map(rows, spread)) <= most:
            return spread
    return [group[len(group) // 2][:most]]


def title(case: Sequence[HasRow]) -> str:
    """Names a case: "2 replicas, batch size 32"."""
    row = case[0].row
    batch = "" if row.batch_size is None else f", batch size {row.batch_size:,}"
    return f"{units.counted(row.group_size, 'replica')}{batch}"

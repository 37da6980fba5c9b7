"""Configurations as rows of bars, one panel per group size and batch size."""

from __future__ import annotations

from collections.abc import Sequence

from dpbench import units
from dpbench.analysis.row import Row
from dpbench.report.charts.style import MOST_PANELS

MOST_LINES = 30


def cases(found: Sequence[Row]) -> list[tuple[Row, ...]]:
    """Rows that ran at the same sizes; the largest groups first, then by batch size."""
    groups: dict[tuple[int, int], list[Row]] = {}
    for one in found:
        groups.setdefault((-one.group_size, one.batch_size or 0), []).append(one)
    return [tuple(groups[key]) for key in sorted(groups)]


def cases_that_fit(every: Sequence[tuple[Row, ...]], lines: int = 1) -> list[tuple[Row, ...]]:
    """The first cases, as many as a chart has room for if each row takes so many lines; of the very
    first case as many rows."""
    shown: list[tuple[Row, ...]] = []
    room = MOST_LINES // lines
    for case in every[:MOST_PANELS]:
        if shown and len(case) > room:
            break
        shown.append(case[:room])
        room -= len(case)
    return shown


def case_title(case: Sequence[Row]) -> str:
    """Names a case: "2 replicas, batch size 32"."""
    row = case[0]
    batch = "" if row.batch_size is None else f", batch size {row.batch_size:,}"
    return f"{units.counted(row.group_size, 'replica')}{batch}"

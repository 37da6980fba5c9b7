"""Rows below each other under headings, case by case: what charts of bars have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpbench import units
from dpbench.analysis.configuration import (
    ConfigurationSummary,
    by_configuration,
    usable_repetitions,
)
from dpbench.messages import one_line
from dpbench.records.trial import TrialRecord
from dpbench.report.charts.curves import evenly_spread
from dpbench.report.charts.source import ChartSource
from dpbench.report.charts.style import INK
from dpbench.specs import TrialSpec

Row = TypeVar("Row")
WIDTH = 9.2
INCHES_A_ROW = 0.26
INCHES_A_PANEL = 0.55
INCHES_AROUND = 1.9
"""Title, key, axis and caption."""
HEADING, GAP = 0.95, 0.45
"""Rows that a heading takes, and that separate it from the block above."""
ROWS_A_PANEL = INCHES_A_PANEL / INCHES_A_ROW
"""Rows that the title and axis of a stacked panel need."""


def figure_of(rows: float) -> tuple[Figure, Axes]:
    """A figure with room for so many rows."""
    figure = _figure(rows * INCHES_A_ROW + INCHES_AROUND)
    axes: Axes = figure.subplots()
    _bare(axes)
    return figure, axes


def stacked(rows: Sequence[int]) -> tuple[Figure, list[Axes]]:
    """Panels below each other, each with room for so many rows, and an axis of its own."""
    height = sum(rows) * INCHES_A_ROW + len(rows) * INCHES_A_PANEL + INCHES_AROUND
    figure = _figure(height)
    grid = figure.subplots(len(rows), 1, squeeze=False, height_ratios=rows)
    axes: list[Axes] = [line[0] for line in grid]
    for axis in axes:
        _bare(axis)
    return figure, axes


def row_positions(
    blocks: Sequence[Sequence[Row]],
) -> Iterator[tuple[float, list[tuple[float, Row]]]]:
    """Position of each block's heading, and of each of its rows, counted downwards."""
    at = 0.0
    for block in blocks:
        yield at, [(at + HEADING + number, row) for number, row in enumerate(block)]
        at += HEADING + len(block) + GAP


def height_of(blocks: Sequence[Sequence[object]]) -> float:
    return sum(HEADING + len(block) + GAP for block in blocks)


def finish_rows(axes: Axes, named: Sequence[tuple[float, str]], height: float) -> None:
    """Names rows at the left and turns the axis downwards."""
    axes.set_yticks([place for place, _ in named], [name for _, name in named])
    axes.set_ylim(height - GAP - 0.3, -0.5)


def legend(axes: Axes, handles: Sequence[Artist], *, right: bool = False) -> None:
    """Draw the legend of colours in one line above the panel; at the right if the title is
    there."""
    axes.legend(
        handles=handles,
        loc="lower right" if right else "lower left",
        bbox_to_anchor=(1 if right else 0, 1),
        ncols=len(handles),
        borderaxespad=0.2,
        handlelength=1.2,
        columnspacing=1.4,
    )


def write_heading(axes: Axes, place: float, text: str) -> None:
    """Writes a heading at the left of the panel, above its rows."""
    at = axes.get_yaxis_transform()
    axes.text(0, place, text, transform=at, va="center", fontweight="bold", color=INK)


def write_beside(axes: Axes, place: float, text: str, *, points: float = 8.0, **look: Any) -> None:
    """Writes a text so many points to the right of the panel, where no bar can hide it."""
    axes.annotate(
        text,
        (1, place),
        xycoords=axes.get_yaxis_transform(),
        xytext=(points, 0),
        textcoords="offset points",
        va="center",
        annotation_clip=False,
        **{"fontsize": 7.5, "color": INK, **look},
    )


def _figure(height: float) -> Figure:
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    spacing: Any = figure.get_layout_engine()
    spacing.set(w_pad=0.12, h_pad=0.08)
    return figure


def _bare(axes: Axes) -> None:
    axes.grid(False, axis="y")
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


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
    """The largest groups first, as they have most to show; then by batch size."""
    groups: dict[tuple[int, int], list[One]] = {}
    for one in found:
        groups.setdefault((-one.row.group_size, one.row.batch_size or 0), []).append(one)
    return [tuple(groups[key]) for key in sorted(groups)]


def cases_that_fit(
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
        spread = [group[place] for place in evenly_spread(range(len(group)), count)]
        if sum(map(rows, spread)) <= most:
            return spread
    return [group[len(group) // 2][:most]]


def case_title(case: Sequence[HasRow]) -> str:
    """Names a case: "2 replicas, batch size 32"."""
    row = case[0].row
    batch = "" if row.batch_size is None else f", batch size {row.batch_size:,}"
    return f"{units.counted(row.group_size, 'replica')}{batch}"

"""Efficiency in every cell of batch size and group size: where scaling starts to pay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpbench import units
from dpbench.analysis.configuration import ConfigurationSummary
from dpbench.analysis.estimate import Estimate
from dpbench.messages import one_line
from dpbench.report.charts.curves import chosen_sizes, first_in_row
from dpbench.report.charts.kinds import CHARTS
from dpbench.report.charts.source import ChartSource, NothingToDraw
from dpbench.report.charts.style import MUTED, ON_COLOUR, finish, panels

MOST_PANELS = 9
MOST_CELLS = 8
"""Most cells in a row or a column."""
CELL_INCHES = (0.62, 0.46)
AROUND_INCHES = (1.2, 1.0)
"""A panel: its title and axes."""
LEAST_INCHES, OUTSIDE_INCHES = 7.2, 1.1
"""Width of the figure, and height of its title and caption."""
COLOURS = mpl.colormaps["cividis"]
"""Rises evenly in lightness, for any colour vision."""
LIGHTNESS, LIGHT = (0.299, 0.587, 0.114), 0.5
"""Weights of red, green and blue in lightness, and the lightness from which a cell has dark
letters."""
POINTS, MOST_POINTS = 7.5, 10.0
"""Font size of numbers in points; larger if a figure's width has few cells."""

Cells = dict[tuple[str, int, int], ConfigurationSummary]
"""Rows by series, batch size and group size."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Map:
    """A panel; cells are None where nothing was asked for."""

    title: str
    x: str
    y: str
    columns: Sequence[str]
    rows: Sequence[str]
    """Labels from the bottom."""
    cells: Sequence[Sequence[ConfigurationSummary | None]]


def efficiency_map(source: ChartSource) -> Figure:
    """One panel an implementation and backend; one replica, 100 % by definition, is left out.

    Of a single group size there is one panel, with a row an implementation and backend.
    """
    cells: Cells = {}
    for row in source.rows:
        if row.group_size > 1 and row.batch_size is not None:
            cells.setdefault((row.series, row.batch_size, row.group_size), row)
    known = [key for key, row in cells.items() if row.efficiency is not None]
    series = list(dict.fromkeys(name for name, _, _ in known))
    batch_sizes = chosen_sizes([batch for _, batch, _ in known], MOST_CELLS)
    group_sizes = chosen_sizes([group for _, _, group in known], MOST_CELLS)
    if len(batch_sizes) < 2:
        raise NothingToDraw("no efficiency at two batch sizes or more of groups of several")
    shown = series[:MOST_PANELS]
    if len(group_sizes) > 1:
        maps = [_of_series(cells, name, batch_sizes, group_sizes) for name in shown]
    else:
        maps = [_of_group(cells, shown, batch_sizes, group_sizes[0])]
    figure, axes = _figure(len(maps), columns=len(maps[0].columns), rows=len(maps[0].rows))
    points = _points(figure, axes[0], columns=len(maps[0].columns))
    found = [
        estimate
        for axis, one in zip(axes, maps, strict=True)
        for estimate in _draw(axis, one, points)
    ]
    remarks = ["percent of linear scaling; brighter is closer to it"]
    for noun, drawn, every in (
        ("series", shown, set(series)),
        ("batch sizes", batch_sizes, {batch for _, batch, _ in known}),
        ("group sizes", group_sizes, {group for _, _, group in known}),
    ):
        if len(drawn) < len(every):
            remarks.append(f"{len(drawn)} of {len(every)} {noun}")
    return finish(
        figure,
        title=CHARTS["efficiency-map"].title,
        caption=source.caption(found, remarks, mark="in brackets", noun="cell", lacking="one"),
    )


def _of_series(
    cells: Cells, series: str, batch_sizes: Sequence[int], group_sizes: Sequence[int]
) -> _Map:
    return _Map(
        title=one_line(series),
        x="group size (replicas)",
        y="batch size",
        columns=[f"{size:,}" for size in group_sizes],
        rows=[f"{size:,}" for size in batch_sizes],
        cells=[
            [cells.get((series, batch, group)) for group in group_sizes] for batch in batch_sizes
        ],
    )


def _of_group(
    cells: Cells, series: Sequence[str], batch_sizes: Sequence[int], group_size: int
) -> _Map:
    upwards = series[::-1]
    return _Map(
        title=f"group size {group_size:,}",
        x="batch size",
        y="",
        columns=[f"{size:,}" for size in batch_sizes],
        rows=[one_line(name) for name in upwards],
        cells=[[cells.get((name, batch, group_size)) for batch in batch_sizes] for name in upwards],
    )


def _figure(count: int, *, columns: int, rows: int) -> tuple[Figure, list[Axes]]:
    """Panels that are as large as their cells are many."""
    figure, axes = panels(count)
    grid = axes[0].get_gridspec()
    assert grid is not None
    width, height = (
        size * cells + around
        for size, cells, around in zip(CELL_INCHES, (columns, rows), AROUND_INCHES, strict=True)
    )
    figure.set_size_inches(
        max(LEAST_INCHES, grid.ncols * width), grid.nrows * height + OUTSIDE_INCHES
    )
    return figure, axes


def _points(figure: Figure, axes: Axes, *, columns: int) -> float:
    """Font size in points, as large as the width of a cell allows."""
    grid = axes.get_gridspec()
    assert grid is not None
    cell = (figure.get_figwidth() / grid.ncols - AROUND_INCHES[0]) / columns
    return min(MOST_POINTS, POINTS * cell / CELL_INCHES[0])


def _draw(axes: Axes, one: _Map, points: float) -> list[Estimate]:
    """A cell a configuration; of one that did not end well, how it ended."""
    found = []
    colours = np.full((len(one.rows), len(one.columns)), np.nan)
    for y, line in enumerate(one.cells):
        for x, row in enumerate(line):
            if row is not None and row.efficiency is not None:
                found.append(row.efficiency)
                colours[y, x] = row.efficiency.value
                _number(axes, x, y, row.efficiency, points)
            elif row is not None:
                words = row.status.words.replace(" ", "\n")
                _write(axes, x, y, words, MUTED, points)
    axes.pcolormesh(colours, cmap=COLOURS, vmin=0, vmax=1, edgecolors="white", linewidth=1.0)
    axes.set_xticks(np.arange(len(one.columns)) + 0.5, one.columns)
    axes.set_yticks(np.arange(len(one.rows)) + 0.5, one.rows)
    axes.tick_params(length=0)
    axes.grid(False)
    axes.spines[:].set_visible(False)
    axes.set_xlabel(one.x)
    axes.set_ylabel(one.y if first_in_row(axes) else "")
    axes.set_title(one.title)
    return found


def _number(axes: Axes, x: int, y: int, efficiency: Estimate, points: float) -> None:
    light = np.dot(COLOURS(efficiency.value)[:3], LIGHTNESS) > LIGHT
    text = f"{units.fixed_percent(efficiency.value)}"
    if efficiency.interval is not None:
        low, high = efficiency.interval
        text += f"\n({100 * low:.0f}–{100 * high:.0f})"
    _write(axes, x, y, text, ON_COLOUR if light else "white", points)


def _write(axes: Axes, x: int, y: int, text: str, colour: str, points: float) -> None:
    """Writes into the middle of a cell; not in the layout, which would take long with so many."""
    axes.text(
        x + 0.5,
        y + 0.5,
        text,
        ha="center",
        va="center",
        color=colour,
        fontsize=points,
        in_layout=False,
    )

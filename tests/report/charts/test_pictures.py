"""Charts look as they did when somebody looked at them, and only those do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from dpbench.report.charts.by_size import throughput
from dpbench.report.charts.kinds import CHARTS
from dpbench.report.charts.style import house_style
from tests.report.charts.pictured import figure, sweep
from tests.report.charts.reference import FOLDER, TILE, difference, picture, reference

TOLERANCE = 0.02


@pytest.mark.parametrize("kind", CHARTS)
def test_it_looks_like_its_reference(kind: str) -> None:
    assert difference(picture(figure(kind)), reference(kind)) < TOLERANCE


def test_every_reference_is_of_a_chart() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == set(CHARTS)


def drawn(**changes: object) -> Figure:
    with house_style():
        return throughput(replace(sweep(), **changes))


@pytest.mark.parametrize("implementation", ["dp", "ddp", "torch-ddp", "single", "independent"])
def test_a_missing_series_is_seen(implementation: str) -> None:
    others = tuple(row for row in sweep().rows if row.implementation != implementation)
    assert difference(picture(drawn(rows=others)), reference("throughput")) > TOLERANCE


def test_a_wrong_value_is_seen() -> None:
    """One of 26 rows is faster by a tenth."""
    at, row = next((i, r) for i, r in enumerate(sweep().rows) if r.label == "ddp/gloo ×4, batch 32")
    assert row.throughput is not None
    faster = replace(row, throughput=row.throughput.scaled(1.1, unit=row.throughput.unit))
    rows = (*sweep().rows[:at], faster, *sweep().rows[at + 1 :])
    assert difference(picture(drawn(rows=rows)), reference("throughput")) > TOLERANCE


def test_a_bar_of_the_wrong_length_is_seen() -> None:
    bars = [bar for bar in figure("step-shares").axes[0].patches if isinstance(bar, Rectangle)]
    width = bars[7].get_width()
    try:
        bars[7].set_width(0.9 * width)
        assert difference(picture(figure("step-shares")), reference("step-shares")) > TOLERANCE
    finally:
        bars[7].set_width(width)


def test_the_difference_is_that_of_the_tile_that_differs_most() -> None:
    black = np.zeros((4 * TILE, 3 * TILE, 3))
    grey = black.copy()
    grey[:TILE, : TILE // 2] = 0.5  # half a tile
    assert difference(black, black) == 0
    assert difference(black, grey) == 0.25
    assert difference(black, black[TILE:]) == 1

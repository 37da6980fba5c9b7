"""Fitted laws as a picture: measured points, the law, its band, and where it ends."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dpbench.analysis.laws.series_file import read_series
from dpbench.analysis.laws.study import Study, Wanted, study
from dpbench.report.charts.fit import fit
from dpbench.report.charts.source import ChartSource, NothingToDraw
from tests.report.charts.sources import caption

SOURCE = ChartSource(rows=(), environments={}, name="demo")
COLUMNS = "batch_per_gpu,gpus,seconds_per_step"


@pytest.fixture
def one(tmp_path: Path) -> Study:
    """Withholds 8 of 1, 2, 4 and 8; 64 is refused."""
    path = tmp_path / "speeds.csv"
    rows = [f"{COLUMNS},gpus_per_node", "32,1,0.1,8", "32,2,0.11,8", "32,4,0.12,8", "32,8,0.13,8"]
    path.write_text("\n".join(rows) + "\n")
    return study(read_series(path)[0], Wanted(train_up_to=4, predict=(8, 64)))


def test_points_law_and_words(one: Study) -> None:
    (axes,) = fit([one], SOURCE).axes
    points = {tuple(np.asarray(line.get_ydata(), float).round(6)) for line in axes.lines}
    assert tuple(round(100 * s, 6) for s in (1, 0.1 / 0.11, 0.1 / 0.12)) in points
    assert (round(10 / 0.13, 6),) in points
    assert {text.get_text() for text in axes.texts} == {"law", "withheld", "refused"}


def test_of_many_series_those_with_withheld_points_come_first(one: Study) -> None:
    figure = fit([one] * 8, SOURCE)
    assert len(figure.axes) == 6
    assert "6 of 8 series" in caption(figure)


def test_without_a_fit_there_is_nothing_to_draw() -> None:
    with pytest.raises(NothingToDraw, match="no series"):
        fit([], SOURCE)

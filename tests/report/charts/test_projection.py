"""Projections as a picture: measured group sizes look measured, predicted ones have a band."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.axes import Axes

from dpbench.analysis.projection.law import project
from dpbench.analysis.projection.row import Projection
from dpbench.report.charts.projection import LOOKS, projection
from dpbench.report.charts.source import ChartSource, NothingToDraw
from tests.analysis.projection.sweeps import curve

SOURCE = ChartSource(rows=(), environments={}, name="demo")


def sample(*sizes: int) -> Projection:
    """A law through two group sizes that were measured."""
    return Projection(
        label="ddp/gloo, batch 32",
        implementation="ddp",
        backend="gloo",
        batch_size=32,
        item="images",
        network=None,
        rows=project(curve(lambda n: 0.1 + 0.01 * (n - 1), (1, 2)), sizes or None),
    )


def markers(axes: Axes) -> list[tuple[float, str, bool]]:
    """Group size, marker and whether it is filled, of every point."""
    return [
        (
            float(np.asarray(line.get_xdata())[0]),
            str(line.get_marker()),
            line.get_markerfacecolor() != "white",
        )
        for line in axes.lines
        if len(np.asarray(line.get_xdata())) == 1
        and line.get_marker() in {look.marker for look in LOOKS.values()}
    ]


def test_marker_and_line_tell_where_a_number_comes_from() -> None:
    figure = projection([sample()], SOURCE)
    for axes in figure.axes:
        assert markers(axes) == [(1, "o", True), (2, "o", True), (4, "s", False), (8, "s", False)]
        assert len(axes.collections) >= 2  # the band from 2 to 4, and from 4 to 8
    legend = figure.axes[0].get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["measured", "extrapolated"]


def test_a_single_group_size_is_no_curve() -> None:
    with pytest.raises(NothingToDraw, match="fewer than two group sizes"):
        projection([sample(2)], SOURCE)

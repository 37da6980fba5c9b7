"""Projections as a picture: what is measured looks it, and names are at the ends of lines."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from matplotlib.axes import Axes

from dpbench.report.charts.projection import LOOKS, file_name, projection
from dpbench.report.charts.source import ChartSource, NothingToDraw
from dpbench.report.prediction.projection import Projection
from tests.report.prediction.test_projection import given_one, projected

SOURCE = ChartSource(rows=(), environments={}, name="demo")


def markers(axes: Axes) -> list[tuple[float, str, bool]]:
    """Group size, marker and whether it is filled, of every point."""
    points = [line for line in axes.lines if len(line.get_xdata()) == 1]
    return [
        (
            float(np.asarray(line.get_xdata())[0]),
            str(line.get_marker()),
            line.get_markerfacecolor() != "white",
        )
        for line in points
        if line.get_marker() in {look.marker for look in LOOKS.values()}
    ]


def test_marker_and_line_tell_where_a_number_comes_from() -> None:
    figure = projection([projected()], SOURCE)
    for axes in figure.axes:
        assert markers(axes) == [(1, "o", True), (2, "o", True), (8, "s", False)]
    legend = figure.axes[0].get_legend()
    assert legend is not None
    kinds = [text.get_text() for text in legend.get_texts()]
    assert kinds == ["measured", "extrapolated", "linear scaling"]


def caption(*projections: Projection) -> str:
    return projection(projections, SOURCE).get_supxlabel().replace("\n", " ")


def test_group_sizes_that_are_refused_are_named() -> None:
    one = projected()
    assert " · refused: 64, 1,000, 10,000 replicas · " in caption(one)
    assert "refused" not in caption(given_one())
    given = given_one()
    other = replace(given.series, trial=replace(given.series.trial, batch_size=64))
    both = caption(one, replace(given, series=other))
    assert f"refused of {one.series.label}: 64, 1,000, 10,000 replicas" in both


def test_bands_are_said_to_be_what_they_are() -> None:
    assert "bands: 90 %, of inputs and of the model" in caption(given_one())


def test_points_are_those_of_the_rows_with_their_bands() -> None:
    one = given_one()
    _, efficiency = projection([one], SOURCE).axes
    for row in one.rows:
        assert row.efficiency is not None
        (drawn,) = [
            float(np.asarray(line.get_ydata())[0])
            for line in efficiency.lines
            if len(line.get_xdata()) == 1 and np.asarray(line.get_xdata())[0] == row.group_size
            if line.get_marker() in "osD"
        ]
        assert drawn == pytest.approx(100 * row.efficiency.value)
    last = one.rows[-1].efficiency
    assert last is not None
    assert last.interval is not None
    ends = efficiency.collections[-1].get_paths()[0].vertices
    at_last = ends[ends[:, 0] == one.rows[-1].group_size][:, 1]
    assert (at_last.min(), at_last.max()) == pytest.approx(tuple(100 * e for e in last.interval))


def test_the_series_and_the_network_are_named() -> None:
    figure = projection([given_one()], SOURCE)
    assert given_one().series.network.name in figure.get_suptitle()
    for axes in figure.axes:
        assert "ddp/gloo, batch 32" in [text.get_text() for text in axes.texts]


def test_each_network_that_is_given_has_a_file_of_its_own() -> None:
    assert file_name(None) == "projection"
    assert file_name("H100-NVSwitch_ndr") == "projection-h100-nvswitch-ndr"
    assert file_name("../../etc/passwd\n") == "projection-etc-passwd"
    assert file_name("../") == "projection-given"


def test_nothing_is_drawn_of_one_group_size() -> None:
    with pytest.raises(NothingToDraw, match="fewer than two group sizes"):
        projection([], SOURCE)

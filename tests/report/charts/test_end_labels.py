"""Names beside lines: none on another, each as near to its line as that leaves it."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from dpbench.report.charts.end_labels import LINE_SPACING, POINTS, label_lines, spread
from dpbench.report.charts.style import BLUE, MUTED

HEIGHTS = st.lists(st.floats(-200, 1200), max_size=12)


@pytest.mark.parametrize(
    ("wanted", "heights"),
    [
        ([], []),
        ([50.0], [50.0]),
        ([50.0, 80.0], [50.0, 80.0]),
        ([50.0, 50.0], [45.0, 55.0]),
        ([54.0, 50.0], [57.0, 47.0]),  # in the order of the lines, around their mean of 52
        ([50.0, 50.0, 58.0], [42.666667, 52.666667, 62.666667]),  # as a block of three
        ([0.0, 0.0], [0.0, 10.0]),  # none below the panel
        ([100.0, 100.0], [90.0, 100.0]),
        ([-50.0, 300.0], [0.0, 100.0]),
    ],
)
def test_known_heights(wanted: list[float], heights: list[float]) -> None:
    assert spread(wanted, 10, 0, 100) == pytest.approx(heights)


@given(wanted=HEIGHTS)
def test_names_are_apart_in_order_and_inside(wanted: list[float]) -> None:
    heights = spread(wanted, 10, 0, 1000)
    ordered = sorted(zip(wanted, heights, strict=True))
    assert all(b - a > 10 - 1e-6 for (_, a), (_, b) in pairwise(ordered))
    assert all(-1e-6 <= height <= 1000 + 1e-6 for height in heights)


@given(wanted=HEIGHTS, moved=st.lists(st.floats(-30, 30), min_size=12, max_size=12))
def test_no_other_heights_are_nearer(wanted: list[float], moved: list[float]) -> None:
    """None that are as far apart, in the same order, and inside."""
    heights = spread(wanted, 10, 0, 1000)
    ordered = sorted(zip(wanted, heights, strict=True))
    others = [height + by for (_, height), by in zip(ordered, moved, strict=False)]
    if any(b - a < 10 for a, b in pairwise(others)) or any(not 0 <= y <= 1000 for y in others):
        return
    ours = sum((height - want) ** 2 for want, height in ordered)
    theirs = sum((y - want) ** 2 for y, (want, _) in zip(others, ordered, strict=True))
    assert ours <= theirs + 1e-3


def test_more_names_than_fit_go_on_below() -> None:
    assert spread([50.0] * 4, 10, 40, 60) == pytest.approx([30, 40, 50, 60])


def test_names_in_a_figure_do_not_touch() -> None:
    figure = Figure()
    canvas = FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.set_ylim(0, 1)
    label_lines(axes, [(0.5, 0.5, name, "#0072B2") for name in "abc"])
    canvas.draw()
    pixels = sorted(text.get_window_extent().y0 for text in axes.texts)
    gap = POINTS * LINE_SPACING * figure.dpi / 72
    assert [b - a for a, b in pairwise(pixels)] == pytest.approx([gap, gap], abs=1)


def test_a_leader_is_no_line_of_data_inside_the_panel() -> None:
    figure = Figure()
    canvas = FigureCanvasAgg(figure)
    axes = figure.subplots()
    label_lines(axes, [(0.5, 0.5, "a", BLUE)])
    canvas.draw()
    inside, outside = axes.lines
    assert (inside.get_color(), outside.get_color()) == (MUTED, BLUE)
    assert inside.is_dashed()
    edge = axes.bbox.x1
    assert max(inside.get_xdata()) == min(outside.get_xdata()) == edge

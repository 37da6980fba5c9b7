"""Panels and axes of curves: which are shown, and what is said of the others."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from dpbench.analysis.estimate import Estimate
from dpbench.analysis.published import from_csv
from dpbench.report.charts import curves
from dpbench.report.charts.by_size import speedup, throughput
from dpbench.report.charts.curves import (
    LINE_SPACING,
    POINTS,
    Curve,
    Panel,
    chosen_sizes,
    evenly_spread,
    label_lines,
    number_axis,
    spread_heights,
)
from dpbench.report.charts.source import ChartSource
from dpbench.report.charts.style import BLUE, IMPLEMENTATION_COLOURS, MUTED, series_styles
from tests.analysis.builders import run, trial
from tests.report.charts.pictured import title
from tests.report.charts.sources import caption, source

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
    assert spread_heights(wanted, 10, 0, 100) == pytest.approx(heights)


@given(wanted=HEIGHTS)
def test_names_are_apart_in_order_and_inside(wanted: list[float]) -> None:
    heights = spread_heights(wanted, 10, 0, 1000)
    ordered = sorted(zip(wanted, heights, strict=True))
    assert all(b - a > 10 - 1e-6 for (_, a), (_, b) in pairwise(ordered))
    assert all(-1e-6 <= height <= 1000 + 1e-6 for height in heights)


@given(wanted=HEIGHTS, moved=st.lists(st.floats(-30, 30), min_size=12, max_size=12))
def test_no_other_heights_are_nearer(wanted: list[float], moved: list[float]) -> None:
    """None that are as far apart, in the same order, and inside."""
    heights = spread_heights(wanted, 10, 0, 1000)
    ordered = sorted(zip(wanted, heights, strict=True))
    others = [height + by for (_, height), by in zip(ordered, moved, strict=False)]
    if any(b - a < 10 for a, b in pairwise(others)) or any(not 0 <= y <= 1000 for y in others):
        return
    ours = sum((height - want) ** 2 for want, height in ordered)
    theirs = sum((y - want) ** 2 for y, (want, _) in zip(others, ordered, strict=True))
    assert ours <= theirs + 1e-3


def test_more_names_than_fit_go_on_below() -> None:
    assert spread_heights([50.0] * 4, 10, 40, 60) == pytest.approx([30, 40, 50, 60])


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


def test_chosen_keeps_both_ends() -> None:
    assert chosen_sizes([3, 1, 2]) == [1, 2, 3]
    assert evenly_spread(range(1, 101), 4) == [1, 34, 67, 100]
    assert chosen_sizes(range(300, 400), 4) == [300, 333, 366, 399]


def test_chosen_are_powers_of_two_where_there_are_such() -> None:
    assert chosen_sizes(range(1, 9)) == [1, 2, 4, 8]
    assert chosen_sizes([1, 2, 3, 4, 8, 16, 32, 64], 4) == [1, 4, 16, 64]
    assert chosen_sizes(range(6, 20), 4) == [6, 8, 16, 19]


@pytest.mark.parametrize(
    ("sizes", "log", "ticks"),
    [
        ([1, 2], False, [1, 2]),
        ([1, 2, 3, 4, 5, 6, 7, 8], False, [1, 2, 3, 4, 5, 6, 7, 8]),
        ([1, 2, 4, 16, 64, 256, 1024], True, [1, 4, 16, 64, 256, 1024]),
        ([8, 96, 120, 144, 216], True, [8, 120, 216]),
        ([24, 32, 33, 64], True, [24, 33, 64]),
        ([7], True, [7]),
    ],
)
def test_ticks_have_room_and_the_largest_has_one(
    sizes: list[int], log: bool, ticks: list[int]
) -> None:
    axes = Figure().subplots()
    number_axis(axes, sizes, "group size", log=log)
    assert axes.get_xticks().tolist() == ticks


def panel(*ends: tuple[float, float]) -> Panel:
    """A curve of values with the upper ends of their intervals."""
    ys = tuple(
        Estimate(value=v, low=v, high=high, unit="×", sample_size=3, basis="repetitions")
        for v, high in ends
    )
    (style,) = series_styles([("ddp", "gloo")]).values()
    xs = tuple(range(1, len(ys) + 1))
    return Panel(title="", curves=(Curve(label="ddp", style=style, xs=xs, ys=ys),))


def test_an_axis_has_room_for_intervals_unless_they_are_very_wide() -> None:
    assert curves.upper_limit([panel((1, 1.1), (2, 2.5))]) == pytest.approx(1.05 * 2.5)
    wide = panel((1, 1.1), (2, 50))
    assert curves.upper_limit([wide]) == pytest.approx(1.05 * 1.6 * 2)
    assert curves.are_cut([wide], curves.upper_limit([wide]))
    assert curves.upper_limit([wide], beside=7) == pytest.approx(1.05 * 7)


def test_panels_share_an_axis_where_all_stay_legible() -> None:
    assert curves.are_alike([panel((1, 1)), panel((4, 4))])
    assert not curves.are_alike([panel((1, 1)), panel((4.1, 4.1))])


def test_panels_and_look_alikes_that_are_left_out_are_said() -> None:
    records = [
        run(trial(group_size=n, batch_size=batch, warmup_steps=warmup), 100.0 * n)
        for n in (1, 2)
        for batch in range(8, 72, 8)
        for warmup in (2, 3)
    ]
    figure = throughput(source(records))
    assert len(figure.axes) == 4
    said = caption(figure)
    assert "batch sizes 8, 16, 32, 64 of 8 measured" in said
    assert "8 rows that differ in something else left out" in said


@pytest.fixture
def partly_known(tmp_path: Path) -> ChartSource:
    """Published numbers of two series, the batch size of one of which nobody wrote down."""
    file = tmp_path / "published.csv"
    lines = ["group_size,images_per_second,backend,batch_size,source"]
    lines += [f"{n},{100 * n},gloo,{batch},a paper" for n in (1, 2) for batch in (8, 16)]
    lines += [f"{n},{90 * n},nccl,,a paper" for n in (1, 2)]
    file.write_text("\n".join(lines) + "\n")
    return ChartSource(rows=from_csv(file), environments={}, name="published")


def test_rows_of_an_unknown_batch_size_have_a_panel_of_their_own(partly_known: ChartSource) -> None:
    figure = throughput(partly_known)
    assert [title(axes) for axes in figure.axes] == [
        "batch size 8",
        "batch size 16",
        "batch size not known",
    ]
    assert "published/nccl" in {text.get_text() for text in figure.axes[-1].texts}


def test_linear_scaling_says_where_it_starts() -> None:
    speeds = {"ddp": 110.0, "torch-ddp": 100.0}
    records = [run(trial(name, group_size=n), speeds[name] * n) for name in speeds for n in (1, 2)]
    alone = [run(trial("single", "none", 1), 90.0)]
    for every, start in ((records, "ddp/gloo"), ([*alone, *records], "single")):
        (axes,) = throughput(source(every)).axes
        assert f"linear from {start}" in [text.get_text() for text in axes.texts]
    said = caption(speedup(source(records)))
    assert "linear: n times the same at group size 1" in said


def test_the_colour_of_local_sgd_is_nobody_elses_whatever_else_is_drawn() -> None:
    others = [(name, "gloo") for name in IMPLEMENTATION_COLOURS]
    colours = {
        series_styles([*beside, ("local-sgd(4)", "gloo")])["local-sgd(4)", "gloo"].color
        for beside in (others, others[:1], others[1:3])
    }
    assert len(colours) == 1
    assert not colours & {*IMPLEMENTATION_COLOURS.values()}


def test_more_series_than_colours_differ_in_their_markers() -> None:
    names = [(f"local-sgd({n})", "gloo") for n in range(9)]
    looks = {(s.color, s.marker, s.hollow) for s in series_styles(names).values()}
    assert len(looks) == 9


def test_panels_of_their_own_axes_still_count_in_the_same_unit() -> None:
    """35,000 images/s beside 3,500: both in k images/s."""
    records = [
        run(trial("ddp", group_size=n, batch_size=batch), speed * n)
        for batch, speed in ((8, 1_750.0), (64, 17_500.0))
        for n in (1, 2)
    ]
    units = {axes.get_ylabel() for axes in throughput(source(records)).axes} - {""}
    assert len(units) == 1

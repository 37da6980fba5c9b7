"""Panels and axes of curves: which are shown, and what is said of the others."""

from __future__ import annotations

import pytest
from matplotlib.figure import Figure

from dpbench.analysis.estimate import Estimate
from dpbench.report.charts import limits
from dpbench.report.charts.curves import Curve, Panel, chosen, number_axis
from dpbench.report.charts.style import series_styles
from dpbench.report.charts.throughput import throughput
from tests.analysis.builders import run, trial
from tests.report.charts.sources import source


def test_chosen_keeps_both_ends() -> None:
    assert chosen([3, 1, 2]) == [1, 2, 3]
    assert chosen(list(range(1, 101)), 4) == [1, 34, 67, 100]


@pytest.mark.parametrize(
    ("sizes", "log", "ticks"),
    [
        ([1, 2], False, [1, 2]),
        ([1, 2, 4, 8], False, [1, 2, 4, 8]),
        ([1, 2, 4, 1024], True, [1, 4, 1024]),
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
    return Panel(parameter=1, curves=(Curve(label="ddp", style=style, xs=xs, ys=ys),))


def test_an_axis_has_room_for_intervals_unless_they_are_very_wide() -> None:
    assert limits.top([panel((1, 1.1), (2, 2.5))]) == pytest.approx(1.05 * 2.5)
    wide = panel((1, 1.1), (2, 50))
    assert limits.top([wide]) == pytest.approx(1.05 * 1.6 * 2)
    assert limits.are_cut([wide], limits.top([wide]))
    assert limits.top([wide], beside=7) == pytest.approx(1.05 * 7)


def test_panels_share_an_axis_where_all_stay_legible() -> None:
    assert limits.are_alike([panel((1, 1)), panel((4, 4))])
    assert not limits.are_alike([panel((1, 1)), panel((4.1, 4.1))])


def test_panels_and_look_alikes_that_are_left_out_are_said() -> None:
    records = [
        run(trial(group_size=n, batch_size=batch, warmup_steps=warmup), 100.0 * n)
        for n in (1, 2)
        for batch in range(8, 72, 8)
        for warmup in (2, 3)
    ]
    figure = throughput(source(records))
    assert len(figure.axes) == 6
    caption = figure.get_supxlabel().replace("\n", " ")
    assert "batch sizes 8, 16, 32, 40, 56, 64 of 8 measured" in caption
    assert "12 rows that differ in something else left out" in caption


def test_more_series_than_colours_differ_in_their_markers() -> None:
    names = [(f"local-sgd({n})", "gloo") for n in range(9)]
    looks = {(s.color, s.marker, s.hollow) for s in series_styles(names).values()}
    assert len(looks) == 9

"""The waterfall: bars that meet, from linear scaling down to what was reached."""

from __future__ import annotations

from dataclasses import replace

import pytest
from matplotlib.patches import Rectangle

from dpbench.report.charts.source import ChartSource, NothingToDraw
from dpbench.report.charts.style import VERMILION
from dpbench.report.charts.waterfall import waterfall
from tests.analysis.builders import steps_of, weak_sweep
from tests.report.charts.sources import caption, source
from tests.report.sample import subject


def ends(bar: Rectangle) -> tuple[float, float]:
    return bar.get_x(), bar.get_x() + bar.get_width()


def test_every_bar_begins_where_the_one_above_ends() -> None:
    figure = waterfall(source(weak_sweep()))
    ddp = next(axes for axes in figure.axes if axes.get_title().startswith("ddp"))
    bars = [bar for bar in ddp.patches if isinstance(bar, Rectangle)]
    linear, *factors, reached = [ends(bar) for bar in bars]
    assert linear == (0, 100)
    assert [start for start, _ in factors] == pytest.approx(
        [100, *[end for _, end in factors][:-1]]
    )
    assert reached == pytest.approx((0, 50))
    assert factors[-1][1] == pytest.approx(50)


def test_a_merged_factor_is_one_bar_over_both_rows() -> None:
    records = [*weak_sweep(), steps_of("dp", [0.02], [0.015], group_size=2)]
    figure = waterfall(source(records))
    dp = next(axes for axes in figure.axes if axes.get_title().startswith("dp"))
    heights = [round(bar.get_height(), 1) for bar in dp.patches if isinstance(bar, Rectangle)]
    assert heights == [0.6, 0.6, 2.6, 0.6, 0.6]


def test_configurations_that_are_left_out_are_said() -> None:
    records = [
        record
        for batch_size in range(1, 15)
        for record in (
            steps_of("single", [0.01], batch_size=batch_size),
            steps_of("ddp", [0.02, 0.02], [0.01, 0.01], batch_size=batch_size),
        )
    ]
    figure = waterfall(source(records))
    assert len(figure.axes) == 12
    assert "of 14 configurations the 12 with the lowest efficiency" in caption(figure)


def test_numbers_stand_beside_the_bars_and_say_loss_or_noise() -> None:
    records = [record for n in range(3) for record in weak_sweep(n, slower=1 + n / 100)]
    figure = waterfall(source(records))
    ddp = next(axes for axes in figure.axes if axes.get_title().startswith("ddp"))
    words = [text.get_text() for text in ddp.texts]
    assert words[0] == "× 0.80 ± 0"
    assert words[-1] == "50 ± 0 %"
    assert len(words) == 6
    assert ddp.texts[0].get_color() == VERMILION


def test_explanations_that_are_held_are_drawn_as_they_are() -> None:
    about = subject(weak_sweep())
    ddp = [one for one in about.explanations if one.trial.implementation == "ddp"]
    held = replace(about, explanations=tuple(ddp))
    assert len(waterfall(ChartSource.of(about)).axes) == 2
    assert len(waterfall(ChartSource.of(held)).axes) == 1


def test_without_single_there_is_nothing_to_draw() -> None:
    _, *others = weak_sweep()
    with pytest.raises(NothingToDraw, match="`single`"):
        waterfall(source(others))

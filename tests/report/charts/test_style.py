"""The unit of an axis: chosen from what is drawn, which stays in the unit of the table."""

from __future__ import annotations

import pytest
from matplotlib.figure import Figure

from dpbench.report.charts.style import axis_unit, scaled_axis


@pytest.mark.parametrize(
    ("largest", "unit", "name", "written"),
    [
        (15_000, "images/s", "images/s", "15,000"),
        (20_000, "images/s", "k images/s", "20"),
        (3.5e6, "tokens/s", "M tokens/s", "3.5"),
        (1.2, "s", "s", "1.2"),
        (0.0123, "s", "ms", "12.3"),
        (4e-6, "s", "µs", "4"),
        (4e-9, "s", "µs", "0.004"),
        (2.5e9, "B/s", "GB/s", "2.5"),
        (2.5e3, "B/s", "kB/s", "2.5"),
        (0.81, "of linear", "% of linear scaling", "81"),
        (1.9, "×", "×", "1.9"),
        (0.0, "s", "µs", "0"),
    ],
)
def test_it_suits_the_largest_value(largest: float, unit: str, name: str, written: str) -> None:
    chosen = axis_unit([largest / 7, largest], unit)
    assert chosen.name == name
    assert chosen.written(largest) == written


def test_only_the_words_change() -> None:
    axes = Figure().subplots()
    axes.plot([0, 1], [0.0, 0.05])
    scaled_axis(axes.yaxis, [0.05], "s", "step time")
    assert axes.get_ylabel() == "step time (ms)"
    assert axes.yaxis.get_major_formatter()(0.05) == "50"
    assert axes.lines[0].get_ydata()[1] == 0.05
    scaled_axis(axes.yaxis, [0.05], "s", "")
    assert axes.get_ylabel() == ""

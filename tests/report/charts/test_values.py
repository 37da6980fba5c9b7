"""What a chart shows is what the table says: every value, every interval, and no other ones."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from matplotlib.axes import Axes

from dpbench.analysis.configuration import ConfigurationSummary
from dpbench.analysis.estimate import Estimate
from tests.report.charts.pictured import figure, sweep, title
from tests.report.charts.sources import caption

Ends = tuple[float, float, float]
"""Value, and the ends of its interval; the value itself where it has none."""
CURVES: dict[str, Callable[[ConfigurationSummary], Estimate | None]] = {
    "throughput": lambda row: row.throughput,
    "speedup": lambda row: None if row.implementation == "single" else row.speedup,
    "efficiency": lambda row: None if row.implementation == "single" else row.efficiency,
}


def ends(estimate: Estimate) -> Ends:
    low, high = estimate.interval or (estimate.value, estimate.value)
    return estimate.value, low, high


def drawn(axes: Axes) -> list[tuple[str, Ends]]:
    """Series and values of the bars of a panel, from left to right."""
    found = []
    for bars in axes.containers:
        line, _, (spans,) = bars.lines
        for y, span in zip(np.asarray(line.get_ydata()), spans.get_segments(), strict=True):
            found.append((str(bars.get_label()), (float(y), *map(float, span[:, 1]))))
    return found


@pytest.mark.parametrize("kind", CURVES)
def test_points_and_bars_are_the_rows(kind: str) -> None:
    shown = []
    for axes in figure(kind).axes:
        size = int(title(axes).rpartition(" ")[2])
        shown += [(size, *one) for one in drawn(axes)]
    rows = [
        (row.batch_size, row.series, ends(estimate))
        for row in sweep().rows
        if (estimate := CURVES[kind](row)) is not None
    ]
    assert len(rows) > 20
    for (size, series, values), (own_size, own_series, own) in zip(
        sorted(shown), sorted(rows), strict=True
    ):
        assert (size, series) == (own_size, own_series)
        assert values == pytest.approx(own)


@pytest.mark.parametrize("kind", CURVES)
def test_every_point_is_inside_its_panel(kind: str) -> None:
    for axes in figure(kind).axes:
        low, high = axes.get_ylim()
        assert all(low <= value <= high for _, (value, _, _) in drawn(axes))


@pytest.mark.parametrize("kind", CURVES)
def test_every_line_is_named_where_it_ends(kind: str) -> None:
    for axes in figure(kind).axes:
        names = [text.get_text() for text in axes.texts]
        ideal = "linear from single" if kind == "throughput" else "linear scaling"
        assert names == [*dict.fromkeys(series for series, _ in drawn(axes)), ideal]
        assert len(names) == len(set(names))


def test_caption_and_axes_say_what_the_numbers_are() -> None:
    chart = figure("throughput")
    assert chart.axes[0].get_ylabel() == "throughput (images/s)"
    assert caption(chart) == (
        "bars: 95 % interval over n = 2–3 repetitions · environment e0 · demo"
    )
    assert figure("efficiency").axes[0].get_ylabel() == "efficiency (% of linear scaling)"

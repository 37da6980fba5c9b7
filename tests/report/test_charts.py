"""What is measured is also visible."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from matplotlib.figure import Figure

from dpbench.analysis.summary import summarize
from dpbench.environment import capture
from dpbench.report.charts.batch_size import throughput_by_batch_size
from dpbench.report.charts.source import ChartSource
from dpbench.report.charts.throughput import throughput_by_group_size
from tests.report.sample import sample_records


@pytest.mark.parametrize("chart", [throughput_by_batch_size, throughput_by_group_size])
def test_every_point_of_every_panel_is_inside_its_axes(
    chart: Callable[[ChartSource], Figure],
) -> None:
    records = sample_records()
    figure = chart(
        ChartSource(
            rows=summarize(records),
            records=tuple(records),
            environments={"e0": capture()},
            name="demo",
        )
    )
    shown = [axes for axes in figure.axes if axes.lines]
    assert len(shown) == 2
    for axes in shown:
        low, high = axes.get_ylim()
        for line in axes.lines:
            assert all(low <= y <= high for y in line.get_ydata())

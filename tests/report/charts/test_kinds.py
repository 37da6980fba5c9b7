"""The registry of charts: complete, and readable without matplotlib."""

from __future__ import annotations

import pytest

from dpbench.report.charts.kinds import CHARTS
from dpbench.report.charts.source import ChartSource, NothingToDraw

NOTHING = ChartSource(rows=(), environments={}, name="nothing")


@pytest.mark.parametrize("kind", CHARTS)
def test_of_nothing_there_is_nothing_to_draw(kind: str) -> None:
    chart = CHARTS[kind]
    with pytest.raises(NothingToDraw, match=r"^[^A-Z]"):
        chart.draw(NOTHING) if chart.source == "sweep" else chart.draw((), NOTHING)

"""The registry of charts: complete, and readable without matplotlib."""

from __future__ import annotations

import subprocess
import sys

import pytest

from dpbench.report.charts.kinds import CHARTS
from dpbench.report.charts.source import ChartSource, NothingToDraw

NOTHING = ChartSource(rows=(), environments={}, name="nothing")


@pytest.mark.parametrize("kind", CHARTS)
def test_of_nothing_there_is_nothing_to_draw(kind: str) -> None:
    chart = CHARTS[kind]
    with pytest.raises(NothingToDraw, match=r"^[^A-Z]"):
        chart.draw(NOTHING) if chart.source == "sweep" else chart.draw((), NOTHING)


def test_names_are_there_without_matplotlib() -> None:
    code = "import sys, dpbench.report.charts.kinds; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

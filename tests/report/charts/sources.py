"""Sweeps of a few steps, as the source of charts, and what charts say of them."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from dpbench.analysis.summary import summarize
from dpbench.records.trial import TrialRecord
from dpbench.report.charts.source import ChartSource


def source(records: Sequence[TrialRecord]) -> ChartSource:
    return ChartSource(
        rows=summarize(records), records=tuple(records), environments={}, name="demo"
    )


def caption(figure: Figure) -> str:
    """The text below a chart, on one line."""
    return figure.get_supxlabel().replace("\n", " ")

"""Sweeps of a few steps, as the source of charts."""

from __future__ import annotations

from collections.abc import Sequence

from dpbench.analysis.summary import summarize
from dpbench.records import TrialRecord
from dpbench.report.charts.source import ChartSource


def source(records: Sequence[TrialRecord]) -> ChartSource:
    return ChartSource(
        rows=summarize(records), records=tuple(records), environments={}, name="demo"
    )

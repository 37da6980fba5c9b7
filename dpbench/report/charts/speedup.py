"""Speedup against group size: how many times as fast as one replica."""

from __future__ import annotations

from matplotlib.figure import Figure

from dpbench.report.charts.group_sizes import Against, by_group_size
from dpbench.report.charts.source import ChartSource


def speedup(source: ChartSource) -> Figure:
    """One panel a batch size; each curve against itself at group size 1."""
    return by_group_size(
        source,
        [row for row in source.rows if row.implementation != "single"],
        Against(
            title="Speedup by group size",
            quantity="speedup",
            y=lambda row: row.speedup,
            remark="linear: n times the same at group size 1",
            linear=lambda _, group_size: float(group_size),
        ),
    )

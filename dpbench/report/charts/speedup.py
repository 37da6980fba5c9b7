"""Speedup against group size: how many times as fast as one replica."""

from __future__ import annotations

from matplotlib.figure import Figure

from dpbench.report.charts.group_sizes import LINEAR_OF_ITSELF, Against, by_group_size, in_groups
from dpbench.report.charts.source import ChartSource


def speedup(source: ChartSource) -> Figure:
    """One panel a batch size; each curve against itself at group size 1."""
    return by_group_size(
        source,
        in_groups(source),
        Against(
            title="Speedup by group size",
            quantity="speedup",
            y=lambda row: row.speedup,
            remark=LINEAR_OF_ITSELF,
            linear=lambda _, group_size: float(group_size),
        ),
    )

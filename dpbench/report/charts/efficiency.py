"""Efficiency against group size: how much of linear scaling is reached."""

from __future__ import annotations

from matplotlib.figure import Figure

from dpbench.report.charts.group_sizes import LINEAR_OF_ITSELF, Against, by_group_size, in_groups
from dpbench.report.charts.source import ChartSource


def efficiency(source: ChartSource) -> Figure:
    """One panel a batch size; each curve against itself at group size 1."""
    return by_group_size(
        source,
        in_groups(source),
        Against(
            title="Efficiency by group size",
            quantity="efficiency",
            y=lambda row: row.efficiency,
            remark=LINEAR_OF_ITSELF,
            linear=lambda _, __: 1.0,
            grows=False,
        ),
    )

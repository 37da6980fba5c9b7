"""Efficiency against group size: how much of linear scaling is reached."""

from __future__ import annotations

from matplotlib.figure import Figure

from dpbench.report.charts.group_sizes import Against, by_group_size
from dpbench.report.charts.source import ChartSource


def efficiency(source: ChartSource) -> Figure:
    """One panel a batch size; each curve against itself at group size 1."""
    return by_group_size(
        source,
        [row for row in source.rows if row.implementation != "single"],
        Against(
            title="Efficiency by group size",
            quantity="efficiency",
            y=lambda row: row.efficiency,
            remark="linear: n times the same at group size 1",
            linear=lambda _, __: 1.0,
            grows=False,
        ),
    )

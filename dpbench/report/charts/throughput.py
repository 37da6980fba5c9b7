"""Throughput against group size, with the line that linear scaling would follow."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.figure import Figure

from dpbench.report.charts.curves import Panel
from dpbench.report.charts.group_sizes import Against, by_group_size
from dpbench.report.charts.source import ChartSource


def throughput(source: ChartSource) -> Figure:
    """One panel a batch size; linear scaling starts at `single`, or at the fastest one replica."""
    return by_group_size(
        source,
        source.rows,
        Against(
            title="Throughput by group size",
            quantity="throughput",
            y=lambda row: row.throughput,
            linear=_linear,
            linear_name=lambda panel: f"linear from {_start(_ones(panel))}",
        ),
    )


def _linear(panel: Panel, group_size: int) -> float | None:
    """n times one replica; None where nothing ran at group size 1."""
    ones = _ones(panel)
    return group_size * ones[_start(ones)] if ones else None


def _ones(panel: Panel) -> dict[str, float]:
    """Values at group size 1."""
    return {
        curve.label: estimate.value
        for curve in panel.curves
        for n, estimate in zip(curve.xs, curve.ys, strict=True)
        if n == 1
    }


def _start(ones: Mapping[str, float]) -> str:
    return "single" if "single" in ones else max(ones, key=ones.__getitem__)

"""Training loss against seconds of the timed window: what the speed is for."""

from __future__ import annotations

from matplotlib.figure import Figure

from dpbench.report.charts.loss import Along, loss_chart
from dpbench.report.charts.source import ChartSource


def loss_seconds(source: ChartSource) -> Figure:
    """One panel a batch size; curves of faster ones end further left."""
    along = Along(
        title="Loss by seconds",
        quantity="timed window",
        unit="s",
        of=lambda curve: curve.seconds,
    )
    return loss_chart(source, along)

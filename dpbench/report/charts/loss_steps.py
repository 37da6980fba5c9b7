"""Training loss against optimizer steps: whether all of them learn the same."""

from __future__ import annotations

from matplotlib.figure import Figure

from dpbench.report.charts.loss import Along, loss_chart
from dpbench.report.charts.source import ChartSource


def loss_steps(source: ChartSource) -> Figure:
    """One panel a batch size; equal curves lie on each other."""
    along = Along(
        title="Loss by steps",
        quantity="timed window",
        unit="steps",
        of=lambda curve: curve.steps,
    )
    return loss_chart(source, along)

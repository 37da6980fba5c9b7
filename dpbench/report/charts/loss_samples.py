"""Training loss against samples: what a sample of a larger global batch is worth."""

from __future__ import annotations

from matplotlib.figure import Figure

from dpbench.report.charts.loss import Along, loss_chart
from dpbench.report.charts.source import ChartSource


def loss_samples(source: ChartSource) -> Figure:
    """One panel a batch size; samples are those of all ranks."""
    item = next((row.item for row in source.rows), "samples")
    along = Along(
        title=f"Loss by {item}",
        quantity="timed window, all ranks",
        unit=item,
        of=lambda curve: curve.samples,
    )
    return loss_chart(source, along)

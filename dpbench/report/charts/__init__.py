"""Charts, one a file; none of them needs a display or touches matplotlib's global state."""

from __future__ import annotations

from collections.abc import Callable

from matplotlib.figure import Figure

from dpbench.report.charts.batch_size import throughput_by_batch_size
from dpbench.report.charts.efficiency import efficiency_by_group_size
from dpbench.report.charts.loss import loss_by_seconds
from dpbench.report.charts.source import ChartSource
from dpbench.report.charts.throughput import throughput_by_group_size

CHARTS: dict[str, Callable[[ChartSource], Figure]] = {
    "throughput_by_group_size": throughput_by_group_size,
    "efficiency_by_group_size": efficiency_by_group_size,
    "throughput_by_batch_size": throughput_by_batch_size,
    "loss_by_seconds": loss_by_seconds,
}
"""File name to chart. A chart raises `NothingToDraw` where its data is missing."""

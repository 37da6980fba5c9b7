"""One figure of every kind, of numbers that never change: what the reference pictures show."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpbench.records.trial import Phases, RankMeasurement, TrialRecord
from dpbench.report.charts.kinds import CHARTS
from dpbench.report.charts.source import ChartSource
from dpbench.report.charts.style import house_style
from tests.report.charts.sources import source
from tests.report.charts.test_bandwidth import sample as collectives
from tests.report.charts.test_projection import sample as projected
from tests.report.sample import sample_records


@cache
def sweep() -> ChartSource:
    """Five implementations at three group sizes and two batch sizes; a row failed, some skipped."""
    return source([_with_phases(record) for record in sample_records(group_sizes=(1, 2, 4))])


@cache
def figure(kind: str) -> Figure:
    """Drawn once; nobody may change it."""
    with house_style():
        return _FIGURES.get(kind, lambda: CHARTS[kind].draw(sweep()))()


def title(axes: Axes) -> str:
    """Of a panel, at the left as the style sheet has it, or in the middle."""
    return axes.get_title("left") or axes.get_title()


def _with_phases(record: TrialRecord) -> TrialRecord:
    return replace(record, ranks=tuple(_instrumented(rank) for rank in record.ranks))


def _instrumented(rank: RankMeasurement) -> RankMeasurement:
    """A tenth of data, three of forward, five of backward, a fifth of them hidden communication."""
    steps = rank.timed.step_seconds[:5]

    def phases(backward: float) -> Phases:
        return Phases(
            data_seconds=tuple(0.1 * step for step in steps),
            forward_seconds=tuple(0.3 * step for step in steps),
            backward_seconds=tuple(backward * step for step in steps),
            optimizer_seconds=tuple(0.1 * step for step in steps),
        )

    alone = None if rank.without_sync is None else phases(0.4)
    return replace(rank, phases=phases(0.5), phases_without_sync=alone)


_NOWHERE = ChartSource(rows=(), environments={}, name="demo")
_FIGURES: dict[str, Callable[[], Figure]] = {
    "bandwidth": lambda: CHARTS["bandwidth"].draw(collectives(2, 4), _NOWHERE),
    "projection": lambda: CHARTS["projection"].draw([projected()], _NOWHERE),
}
"""Those that are not of sweeps."""

"""One figure of every kind, of numbers that never change; and what a chart says of its source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from matplotlib.figure import Figure

from dpbench.analysis.analyze import Analysis
from dpbench.analysis.collectives import Collectives
from dpbench.analysis.rows import summarize
from dpbench.records.trial import Mode, Phase, RankMeasurement, TrialRecord
from dpbench.report.charts.figures import house_style
from dpbench.report.charts.kinds import CHARTS
from tests.analysis.builders import stored
from tests.analysis.collective_records import sample_collectives
from tests.report.sample import sample_records, stored_collectives


def source(records: Sequence[TrialRecord]) -> Analysis:
    """Rows and records, which may have implementations that dpbench does not know."""
    return Analysis(name="demo", rows=summarize(records), sweep=stored(records))


def caption(figure: Figure) -> str:
    """The text below a chart, on one line."""
    return figure.get_supxlabel().replace("\n", " ")


@cache
def sweep() -> Analysis:
    """Five implementations at three group sizes and two batch sizes; a row failed, some skipped."""
    return source([_with_phases(record) for record in sample_records(group_sizes=(1, 2, 4))])


def collectives() -> Collectives:
    """On gloo: 100 µs and 1.5 GB/s, within 2 %."""
    on_gloo = [one for one in sample_collectives() if one.spec.backend == "gloo"]
    return stored_collectives(on_gloo, name="demo")


@cache
def figure(kind: str) -> Figure:
    """Drawn once; nobody may change it."""
    with house_style():
        return CHARTS[kind].draw(collectives() if kind == "bandwidth" else sweep())


def _with_phases(record: TrialRecord) -> TrialRecord:
    return replace(record, ranks=tuple(_instrumented(rank) for rank in record.ranks))


def _instrumented(rank: RankMeasurement) -> RankMeasurement:
    """A tenth of data, three of forward, five of backward, a fifth of them hidden communication."""
    steps = rank.timed.step_seconds[:5]

    def phases(backward: float) -> dict[Phase, tuple[float, ...]]:
        return {
            "data": tuple(0.1 * step for step in steps),
            "forward": tuple(0.3 * step for step in steps),
            "backward": tuple(backward * step for step in steps),
            "optimizer": tuple(0.1 * step for step in steps),
        }

    backward: dict[Mode, float] = {"timed": 0.5, "unsynced": 0.4}
    return replace(rank, phases={mode: phases(backward[mode]) for mode in rank.windows})

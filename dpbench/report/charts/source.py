"""The data of a chart, and the caption that gives its source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from matplotlib.figure import Figure

from dpbench import units
from dpbench.analysis.estimate import CONFIDENCE, Estimate
from dpbench.analysis.projection.series import Projection
from dpbench.analysis.row import Row, by_work
from dpbench.analysis.subject import Subject
from dpbench.messages import one_line
from dpbench.records.collectives import CollectiveRecord
from dpbench.records.environment import Environment, environment_line
from dpbench.records.trial import TrialRecord
from dpbench.report.charts.kinds import CHARTS
from dpbench.report.charts.style import titled


class NothingToDraw(Exception):
    """The data holds nothing that this chart could show; the message says what is missing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChartSource:
    """The rows of the table, the records behind them, and their environments."""

    rows: tuple[Row, ...]
    records: tuple[TrialRecord, ...] = ()
    environments: Mapping[str, Environment]
    name: str
    work: str = ""
    """The work of its rows, if the sweep has several; the names of the rows leave it out."""
    collectives: tuple[CollectiveRecord, ...] = ()
    projections: tuple[Projection, ...] = ()

    @classmethod
    def of(cls, subject: Subject) -> ChartSource:
        """All of it."""
        stored = subject.stored
        return cls(
            rows=subject.rows,
            records=subject.sweep.records if subject.sweep else (),
            environments=stored.environments if stored else {},
            name=subject.name,
            collectives=subject.collectives.records if subject.collectives else (),
        )

    @property
    def works(self) -> tuple[ChartSource, ...]:
        """A source for each work of the rows, as a chart is of one."""
        groups = by_work(self.rows)
        if not any(groups):
            return (self,)
        return tuple(
            replace(self, rows=tuple(row.named_within_work for row in rows), work=work)
            for work, rows in groups.items()
        )

    def finish(
        self, figure: Figure, kind: str, estimates: Sequence[Estimate], remarks: Sequence[str]
    ) -> Figure:
        """Puts the title above, which names the work where there are several; below it how the
        intervals came about, what is not shown, and the environment."""
        title = CHARTS[kind].title
        used = {name for record in self.records for name in record.environment_ids}
        used = used or {*self.environments}  # of collectives
        parts = [*interval_words(estimates), *remarks, environment_line(self.environments, used)]
        return titled(
            figure,
            f"{title}: {one_line(self.work)}" if self.work else title,
            " · ".join(one_line(part) for part in (*parts, self.name)),
        )


def first_of(drawn: int, every: int, what: str) -> list[str]:
    """The remark that a chart has no room for all: "first 8 of 9 series"."""
    return [f"first {drawn} of {every:,} {what}"] if drawn < every else []


def interval_words(estimates: Sequence[Estimate]) -> list[str]:
    """How the intervals of a chart came about, and which values have none."""
    words = []
    repeated = [e for e in estimates if e.basis == "repetitions"]
    if repeated:
        count = units.span(estimate.sample_size for estimate in repeated)
        words.append(f"bars: {units.percent(CONFIDENCE)} interval over n = {count} repetitions")
    if single := sum(estimate.basis == "single value" for estimate in estimates):
        words.append(f"{units.counted(single, 'point')} without a bar: n = 1")
    return words

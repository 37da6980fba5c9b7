"""The input of `dpbench plot`: every kind of chart takes what it needs, read when it does."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from dpbench.errors import UsageError
from dpbench.messages import warn
from dpbench.run.results import RowFilter, filter_choices, is_table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from matplotlib.figure import Figure

    from dpbench.analysis.configuration import ConfigurationSummary
    from dpbench.records.collectives import CollectiveRecord
    from dpbench.report.charts.kinds import ChartKind
    from dpbench.report.charts.source import ChartSource
    from dpbench.store import StoredSweep


@dataclass(frozen=True, kw_only=True)
class Plotted:
    """A results folder or a published table, and which rows of it.

    Without slots, because it keeps what it has read.
    """

    path: Path
    wanted: RowFilter

    def charts(self, kind: ChartKind) -> Sequence[tuple[str, Callable[[], Figure]]]:
        """The charts of a kind that are to be drawn, each by its work: "", or one of several.

        They raise NothingToDraw, or StoreError or UsageError for what cannot be used.
        """
        from dpbench.report.charts.files import drawn

        others = {
            "collectives": self._bandwidth,
            "projections": self._projection,
        }
        if kind.source in others:
            return [("", partial(others[kind.source], kind))]
        return [(one.work, partial(drawn, kind.draw, one)) for one in self.source.works]

    @cached_property
    def sweep(self) -> StoredSweep:
        from dpbench.store import load

        sweep = load(self.path)
        warn(*sweep.warnings)
        return sweep

    @cached_property
    def source(self) -> ChartSource:
        """The rows that are wanted; of a folder with collectives only there are none."""
        from dpbench.report.charts.source import ChartSource

        if is_table(self.path):
            from dpbench.analysis.published import from_csv

            rows = self._chosen(from_csv(self.path))
            return ChartSource(rows=rows, environments={}, name=self.path.name)
        if self._holds_collectives_only:
            return ChartSource(rows=(), environments={}, name=self.path.resolve().name)
        from dpbench.analysis.summary import summarize

        rows = summarize(self.sweep.records, environments=self.sweep.environments)
        return ChartSource.of_sweep(self.sweep, self._chosen(rows))

    def _chosen(self, rows: Sequence[ConfigurationSummary]) -> tuple[ConfigurationSummary, ...]:
        chosen = tuple(row for row in rows if self.wanted.passes(row))
        if rows and not chosen:
            raise UsageError(f"{self.path}: no such row; there are {filter_choices(rows)}")
        return chosen

    @property
    def _holds_collectives_only(self) -> bool:
        from dpbench import store

        return store.holds_collectives(self.path) and not store.holds_sweep(self.path)

    def _bandwidth(self, kind: ChartKind) -> Figure:
        from dpbench import store
        from dpbench.report.charts.source import ChartSource, NothingToDraw

        if is_table(self.path) or not store.holds_collectives(self.path):
            raise NothingToDraw("it holds no collectives; dpbench comm measures them")
        stored = store.load_collectives(self.path)
        warn(*stored.warnings)
        records = self._wanted_of(stored.records)
        name = self.path.resolve().name
        source = ChartSource(rows=(), environments=stored.environments, name=name)
        return kind.draw(records, source)

    def _wanted_of(self, records: Sequence[CollectiveRecord]) -> list[CollectiveRecord]:
        """Raises NothingToDraw where filters leave none, or ask for what collectives have not."""
        from dpbench.report.charts.source import NothingToDraw

        if self.wanted.implementations is not None:
            raise NothingToDraw("collectives have no implementation; leave --implementations out")
        if self.wanted.batch_sizes is not None:
            raise NothingToDraw("collectives have no batch size; leave --batch-sizes out")
        sizes, backends = self.wanted.group_sizes, self.wanted.backends
        found = [
            record
            for record in records
            if (sizes is None or record.collective.group_size in sizes)
            and (backends is None or record.collective.backend in backends)
        ]
        if records and not found:
            raise NothingToDraw(f"no such collective; there are {_choices(records)}")
        return found

    def _projection(self, kind: ChartKind) -> Figure:
        """The chart of `dpbench project` without further options."""
        from dpbench.options.project import ProjectOptions
        from dpbench.report.charts.source import ChartSource, NothingToDraw
        from dpbench.run.projection import project

        if self._holds_collectives_only:
            raise NothingToDraw("a projection takes a sweep, where step times are")
        wanted = {name: getattr(self.wanted, name) for name in RowFilter.model_fields}
        options = ProjectOptions(path=self.path, **wanted)
        try:
            found = project(options)
        except UsageError as error:
            raise NothingToDraw(str(error).removeprefix(f"{self.path}: ")) from None
        source = ChartSource(rows=(), environments={}, name=self.path.name)
        if found.sweep is not None:
            source = ChartSource.of_sweep(found.sweep)
        return kind.draw(found.projections, source)


def _choices(records: Sequence[CollectiveRecord]) -> str:
    """Values that the filters can choose from, like `filter_choices` for rows."""
    backends = dict.fromkeys(record.collective.backend for record in records)
    sizes = dict.fromkeys(str(record.collective.group_size) for record in records)
    return f"--backends {', '.join(backends)}; --group-sizes {', '.join(sizes)}"

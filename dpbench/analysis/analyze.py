"""Everything known about one results folder or published table, for reports, pages and charts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from dpbench.analysis.diagnosis.causes import explain_rows
from dpbench.analysis.diagnosis.explanation import Explanation
from dpbench.analysis.fastest import Fastest, fastest_by_batch_size
from dpbench.analysis.noise import MachineLoad, machine_load
from dpbench.analysis.published import is_table
from dpbench.analysis.rows import Row, published_rows, summarize
from dpbench.analysis.sentences import environment_warnings, notes_on, warnings_on
from dpbench.folders import Collectives, Sweep, load_stored
from dpbench.messages import one_line
from dpbench.records.collectives import CollectiveRecord
from dpbench.records.environment import Environment
from dpbench.records.trial import NOT_A_MEAN
from dpbench.specs import Labels
from dpbench.specs.collective import CollectiveSpec

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, kw_only=True)  # without slots, for cached values
class Analysis:
    """What is known about results, and reasons for their values.

    A sweep and a published table have rows, a folder of collectives has only these.
    """

    name: str
    rows: tuple[Row, ...] = ()
    explanations: tuple[Explanation, ...] = ()
    """Explanations of all rows that have a speed, also of those that are too noisy."""
    collectives: tuple[CollectiveRecord, ...] = ()
    stored: Sweep | Collectives | None = None
    """The content of the results folder; None for a published table."""
    folder_warnings: tuple[str, ...] = ()
    """Warnings on all rows: trials that are missing, files that could not be read, the model's
    loss, and machines."""
    work: str = ""
    """The work of its rows, where it is one of several; their names leave it out."""

    @property
    def environments(self) -> Mapping[str, Environment]:
        """The environments of all records, by their identifiers."""
        return self.stored.environments if self.stored else {}

    @property
    def frame(self) -> pd.DataFrame:
        """The rows for programs: one per configuration, or per message size of a collective."""
        from dpbench.analysis.frames import collective_frame, row_frame

        return collective_frame(self.collectives) if self.collectives else row_frame(self.rows)

    def keeping(self, is_kept: Callable[[Row | CollectiveSpec], bool]) -> Analysis:
        """The analysis of some of its rows or collectives; their references stay."""
        return replace(
            self,
            rows=tuple(row for row in self.rows if is_kept(row)),
            explanations=tuple(one for one in self.explanations if is_kept(one.row)),
            collectives=tuple(one for one in self.collectives if is_kept(one.spec)),
        )

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """Warnings before a number is believed, the most important first: one line each."""
        found = warnings_on(self.rows, self.folder_warnings, self.machine_load)
        return tuple(map(one_line, found))

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """What deserves a change or a second look, one line each."""
        return tuple(map(one_line, notes_on(self.rows, self.environments)))

    @cached_property
    def machine_load(self) -> MachineLoad:
        """Other load on the machine during the whole sweep."""
        return machine_load(self.stored.records if isinstance(self.stored, Sweep) else ())

    @property
    def by_work(self) -> tuple[Analysis, ...]:
        """The analysis of each work of its rows, of which a sweep of one architecture has one."""
        configurations = [row.configuration for row in self.rows if row.configuration]
        labels = Labels.among(configurations).within_work
        groups: dict[str, list[Row]] = {}
        for row in self.rows:
            named = row
            if row.work and row.configuration:
                label = labels.implementation(row.configuration)
                named = replace(row, implementation_label=label)
            groups.setdefault(row.work, []).append(named)
        parts = [replace(self, rows=(*rows,), work=work) for work, rows in groups.items()]
        return tuple(parts) or (self,)

    @cached_property
    def fastest(self) -> tuple[Fastest, ...]:
        """The fastest row of each work and batch size of a sweep."""
        found = list[Fastest]()
        is_spoiled = self.machine_load.spoils_speeds
        for part in self.by_work if isinstance(self.stored, Sweep) else ():
            found += fastest_by_batch_size(part.rows, work=part.work, is_spoiled=is_spoiled)
        return tuple(found)


def analyze(stored: Sweep | Collectives) -> Analysis:
    """Analyze the content of a results folder."""
    name = stored.folder.resolve().name
    if isinstance(stored, Collectives):
        return Analysis(
            name=name, collectives=stored.records, stored=stored, folder_warnings=stored.warnings
        )
    records, environments = stored.records, stored.environments
    rows = summarize(records, environments=environments)
    means = [one.is_sample_mean for record in records if (one := record.facts.verification)]
    loss = [NOT_A_MEAN] if False in means else []
    return Analysis(
        name=name,
        rows=rows,
        explanations=explain_rows(rows),
        stored=stored,
        folder_warnings=(
            *filter(None, [stored.unfinished_warning]),
            *stored.warnings,
            *loss,
            *environment_warnings(records, environments),
        ),
    )


def read_analysis(path: Path) -> Analysis:
    """Read and analyze a results folder or a CSV file; raises FileError if it is neither."""
    if is_table(path):
        return Analysis(name=path.name, rows=published_rows(path))
    return analyze(load_stored(path))

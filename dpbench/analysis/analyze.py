"""Everything known about one results folder or published table, for reports, pages and charts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self

from dpbench.analysis.diagnosis.causes import explain_rows
from dpbench.analysis.diagnosis.explanation import Explanation
from dpbench.analysis.fastest import Fastest, fastest_by_batch_size
from dpbench.analysis.noise import MachineLoad, machine_load
from dpbench.analysis.published import is_table
from dpbench.analysis.rows import Row, published_rows, summarize
from dpbench.analysis.sentences import environment_warnings, notes_on, warnings_on
from dpbench.folders import Collectives, Sweep, load_stored
from dpbench.messages import one_line
from dpbench.records.environment import Environment
from dpbench.records.trial import NOT_A_MEAN
from dpbench.specs import Labels
from dpbench.specs.collective import CollectiveSpec

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, kw_only=True)  # without slots, for cached values
class Analysis:
    """The rows of a sweep or of a published table, and reasons for their values."""

    name: str
    rows: tuple[Row, ...] = ()
    explanations: tuple[Explanation, ...] = ()
    """Explanations of all rows that have a speed, also of those that are too noisy."""
    sweep: Sweep | None = None
    """None for a published table."""
    folder_warnings: tuple[str, ...] = ()
    """Warnings on all rows: trials that are missing, files that could not be read, the model's
    loss, and machines."""
    work: str = ""
    """The work of its rows, where it is one of several; their names leave it out."""

    @property
    def stored(self) -> Sweep | Collectives | None:
        """The content of the results folder; None for a published table."""
        return self.sweep

    @property
    def environments(self) -> Mapping[str, Environment]:
        """The environments of all records, by their identifiers."""
        return self.stored.environments if self.stored else {}

    @property
    def frame(self) -> pd.DataFrame:
        """The rows for programs: one per configuration."""
        from dpbench.analysis.frames import row_frame

        return row_frame(self.rows)

    @property
    def selectable(self) -> Sequence[Row | CollectiveSpec]:
        """What `keeping` chooses from."""
        return self.rows

    def keeping(self, is_kept: Callable[[Row | CollectiveSpec], bool]) -> Self:
        """The analysis of some of its rows; their references stay."""
        return replace(
            self,
            rows=tuple(row for row in self.rows if is_kept(row)),
            explanations=tuple(
                explanation for explanation in self.explanations if is_kept(explanation.row)
            ),
        )

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """Warnings before a number is believed, the most important first: one line each."""
        warnings = warnings_on(self.rows, self.folder_warnings, self.machine_load)
        return tuple(map(one_line, warnings))

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """What deserves a change or a second look, one line each."""
        return tuple(map(one_line, notes_on(self.rows, self.environments, self.machine_load)))

    @cached_property
    def machine_load(self) -> MachineLoad:
        """Other load on the machine during the whole sweep."""
        return machine_load(self.sweep.records if self.sweep else ())

    @property
    def by_work(self) -> tuple[Self, ...]:
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
        fastest = list[Fastest]()
        is_spoiled = self.machine_load.spoils_speeds
        for part in self.by_work if self.sweep else ():
            fastest += fastest_by_batch_size(part.rows, work=part.work, is_spoiled=is_spoiled)
        return tuple(fastest)


@dataclass(frozen=True, kw_only=True)
class CollectivesAnalysis(Analysis):
    """The collectives of a results folder, which has no rows."""

    collectives: Collectives

    @property
    def stored(self) -> Collectives:
        """The content of the results folder."""
        return self.collectives

    @property
    def frame(self) -> pd.DataFrame:
        """The collectives for programs: one row per message size."""
        from dpbench.analysis.frames import collective_frame

        return collective_frame(self.collectives.records)

    @property
    def selectable(self) -> Sequence[Row | CollectiveSpec]:
        """What `keeping` chooses from."""
        return [record.spec for record in self.collectives.records]

    def keeping(self, is_kept: Callable[[Row | CollectiveSpec], bool]) -> Self:
        """The analysis of some of its collectives."""
        kept = tuple(record for record in self.collectives.records if is_kept(record.spec))
        return replace(self, collectives=replace(self.collectives, records=kept))


def analyze(stored: Sweep | Collectives) -> Analysis:
    """Analyze the content of a results folder."""
    name = stored.folder.resolve().name
    if isinstance(stored, Collectives):
        return CollectivesAnalysis(name=name, collectives=stored, folder_warnings=stored.warnings)
    records = stored.records
    environments = stored.environments
    rows = summarize(records, environments=environments)
    proofs = [record.facts.verification for record in records if record.facts.verification]
    is_no_mean = any(proof.is_sample_mean is False for proof in proofs)
    return Analysis(
        name=name,
        rows=rows,
        explanations=explain_rows(rows),
        sweep=stored,
        folder_warnings=(
            *filter(None, [stored.unfinished_warning]),
            *stored.warnings,
            *([NOT_A_MEAN] if is_no_mean else []),
            *environment_warnings(records, environments),
        ),
    )


def read_analysis(path: Path) -> Analysis:
    """Read and analyze a results folder or a CSV file; raises FileError if it is neither."""
    if is_table(path):
        return Analysis(name=path.name, rows=published_rows(path))
    return analyze(load_stored(path))

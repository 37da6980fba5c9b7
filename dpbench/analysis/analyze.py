"""Everything known about one sweep or published table, for reports, pages and charts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self

from dpbench import folders
from dpbench.analysis.collectives import Collectives, collective_rows
from dpbench.analysis.diagnosis.causes import explain_rows
from dpbench.analysis.diagnosis.explanation import Explanation
from dpbench.analysis.fastest import Fastest, fastest_by_batch_size
from dpbench.analysis.noise import MachineLoad, machine_load
from dpbench.analysis.published import is_table
from dpbench.analysis.rows import Row, published_rows, summarize
from dpbench.analysis.sentences import environment_warnings, notes_on, warnings_on
from dpbench.folders import COLLECTIVES_FILE, COMM_FILE, Sweep
from dpbench.messages import one_line
from dpbench.records.collectives import CollectiveRecord
from dpbench.records.environment import Environment
from dpbench.records.trial import NOT_A_MEAN, TrialRecord
from dpbench.specs import Labels

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
    def environments(self) -> Mapping[str, Environment]:
        """The environments of all records, by their identifiers; none for a published table."""
        return self.sweep.environments if self.sweep else {}

    @property
    def records(self) -> tuple[TrialRecord, ...]:
        """All records of its sweep; none for a published table."""
        return self.sweep.records if self.sweep else ()

    @property
    def frame(self) -> pd.DataFrame:
        """One line per row, with the ends of intervals."""
        from dpbench.analysis.frames import row_frame

        return row_frame(self.rows)

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
        return machine_load(self.records)

    def select(self, keeps: Callable[[Row], bool]) -> Self:
        """The same with the rows alone that it `keeps`, whose references stay."""
        explained = tuple(each for each in self.explanations if keeps(each.row))
        return replace(self, rows=tuple(filter(keeps, self.rows)), explanations=explained)

    @property
    def by_work(self) -> dict[str, Self]:
        """The analysis of each work of its rows; where there is one work, it is called ""."""
        groups: dict[str, list[Row]] = {}
        for row in self.rows:
            groups.setdefault(row.work, []).append(row)
        parts = dict[str, Self]()
        for work, rows in groups.items():
            labels = Labels.among(row.configuration for row in rows if row.configuration)
            named = (
                replace(row, implementation_label=labels.implementation(row.configuration))
                if work and row.configuration
                else row
                for row in rows
            )
            explained = tuple(each for each in self.explanations if each.row.work == work)
            parts[work] = replace(self, rows=(*named,), explanations=explained, work=work)
        return parts or {"": self}

    @cached_property
    def fastest(self) -> tuple[Fastest, ...]:
        """The fastest row of each work and batch size of a sweep."""
        fastest = list[Fastest]()
        is_spoiled = self.machine_load.spoils_speeds
        for work, part in self.by_work.items() if self.sweep else ():
            fastest += fastest_by_batch_size(part.rows, work=work, is_spoiled=is_spoiled)
        return tuple(fastest)


def analyze(sweep: Sweep) -> Analysis:
    """Analyze the records of a sweep."""
    records = sweep.records
    environments = sweep.environments
    rows = summarize(records, environments=environments)
    proofs = [record.facts.verification for record in records if record.facts.verification]
    is_no_mean = any(proof.is_sample_mean is False for proof in proofs)
    return Analysis(
        name=sweep.folder.resolve().name,
        rows=rows,
        explanations=explain_rows(rows),
        sweep=sweep,
        folder_warnings=(
            *filter(None, [sweep.unfinished_warning]),
            *sweep.warnings,
            *([NOT_A_MEAN] if is_no_mean else []),
            *environment_warnings(records, environments),
        ),
    )


def read_results(path: Path) -> Analysis | Collectives:
    """Read a results folder or a CSV file, and analyze it; raises FileError if it is neither."""
    if is_table(path):
        return Analysis(name=path.name, rows=published_rows(path))
    return read_folder(path)


def read_folder(folder: Path) -> Analysis | Collectives:
    """Read a results folder, and analyze it; raises FileError if it is none, or is of another
    dpbench."""
    if not folders.holds_collectives(folder):
        return analyze(folders.load_sweep(folder))
    _, content = folders.read_content(folder, COMM_FILE, COLLECTIVES_FILE, CollectiveRecord)
    rows = collective_rows(content["records"])
    return Collectives(name=folder.resolve().name, rows=rows, **content)

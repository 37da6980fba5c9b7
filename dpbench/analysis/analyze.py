"""Everything known about one results folder or published table, for reports, pages and charts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from dpbench.analysis.diagnosis.explanation import Explanation, explain_rows
from dpbench.analysis.fastest import Fastest, fastest_by_batch_size
from dpbench.analysis.noise import MachineLoad, machine_load
from dpbench.analysis.rows import Row, summarize
from dpbench.analysis.sentences import environment_warnings, notes_on, warnings_on
from dpbench.folders import Collectives, Sweep, unfinished_warning
from dpbench.messages import one_line
from dpbench.records.trial import NOT_A_MEAN


@dataclass(frozen=True, kw_only=True)  # without slots, for cached values
class Analysis:
    """The rows of a table, and known reasons for their values.

    A published table only has `name` and `rows`; collectives have no rows.
    """

    name: str
    rows: tuple[Row, ...] = ()
    explanations: tuple[Explanation, ...] = ()
    """Explanations of all rows that have a speed, also of those that are too noisy."""
    stored: Sweep | Collectives | None = None
    """The content of the results folder."""
    folder_warnings: tuple[str, ...] = ()
    """Warnings on all rows: trials that are missing, files that could not be read, the model's
    loss, and machines."""
    work: str = ""
    """The work of its rows, where it is one of several; their names leave it out."""

    @property
    def sweep(self) -> Sweep | None:
        return self.stored if isinstance(self.stored, Sweep) else None

    @property
    def collectives(self) -> Collectives | None:
        return self.stored if isinstance(self.stored, Collectives) else None

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """Warnings before a number is believed, the most important first: one line each."""
        found = warnings_on(self.rows, self.folder_warnings, self.machine_load)
        return tuple(map(one_line, found))

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """How to read the numbers, and what deserves a second look: one line each."""
        environments = self.stored.environments if self.stored else {}
        return tuple(map(one_line, notes_on(self.rows, environments)))

    @cached_property
    def machine_load(self) -> MachineLoad:
        """Other load on the machine while these rows were measured."""
        measured = {row.configuration for row in self.rows}
        records = self.sweep.records if self.sweep else ()
        return machine_load([record for record in records if record.configuration in measured])

    @property
    def by_work(self) -> tuple[Analysis, ...]:
        """The analysis of each work of its rows, of which a sweep of one architecture has one."""
        groups: dict[str, list[Row]] = {}
        for row in self.rows:
            named = replace(row, labels=row.labels.within_work) if row.work else row
            groups.setdefault(row.work, []).append(named)
        parts = [replace(self, rows=(*rows,), work=work) for work, rows in groups.items()]
        return tuple(parts) or (self,)

    @cached_property
    def fastest(self) -> tuple[Fastest, ...]:
        """The fastest row of each work and batch size of a sweep."""
        parts, spoiled = self.by_work if self.sweep else (), self.machine_load.spoils_speeds
        return tuple(
            fastest
            for one in parts
            for fastest in fastest_by_batch_size(one.rows, work=one.work, is_spoiled=spoiled)
        )


def analyze(stored: Sweep | Collectives) -> Analysis:
    """Analyze the content of a results folder."""
    name = stored.folder.resolve().name
    if isinstance(stored, Collectives):
        return Analysis(name=name, stored=stored, folder_warnings=stored.warnings)
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
            *unfinished_warning(stored),
            *stored.warnings,
            *loss,
            *environment_warnings(records, environments),
        ),
    )

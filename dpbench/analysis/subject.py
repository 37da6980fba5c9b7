"""The subject of one report, analyzed: a results folder or a published table."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from dpbench.analysis.comparisons.comparability import environment_notes
from dpbench.analysis.diagnosis.causes import explain_rows
from dpbench.analysis.diagnosis.explanation import Explanation
from dpbench.analysis.diagnosis.hints import hints
from dpbench.analysis.headline import Headline, headline_of
from dpbench.analysis.published import from_csv
from dpbench.analysis.repetitions import QUIET, Load, load_of
from dpbench.analysis.rows import Row, summarize
from dpbench.records.trial import NOT_A_MEAN
from dpbench.store import StoredCollectives, StoredSweep
from dpbench.store.unfinished import unfinished_warning


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """Rows of the table, and known reasons for their values.

    A published table only has `name` and `rows`; collectives have no rows.
    """

    name: str
    rows: tuple[Row, ...] = ()
    warnings: tuple[str, ...] = ()
    """Warnings before a number is believed: about machines, or the model's loss."""
    load: Load = QUIET
    """Other load on the machine, of which the warnings have the note."""
    hints: tuple[str, ...] = ()
    explanations: tuple[Explanation, ...] = ()
    """Explanations of all rows that have a speed, also of those that are too noisy."""
    sweep: StoredSweep | None = None
    collectives: StoredCollectives | None = None
    unfinished: tuple[str, ...] = ()
    """The warning that trials of the sweep are missing, if any are."""
    work: str = ""
    """The work of its rows, where it is one of several; their names leave it out."""

    @property
    def stored(self) -> StoredSweep | StoredCollectives | None:
        """The content of a results folder."""
        return self.sweep or self.collectives

    @property
    def works(self) -> tuple[Subject, ...]:
        """The subject for each work of its rows, of which a sweep of one architecture has one."""
        groups: dict[str, list[Row]] = {}
        for row in self.rows:
            named = replace(row, labels=row.labels.within_work) if row.work else row
            groups.setdefault(row.work, []).append(named)
        found = (replace(self, rows=tuple(rows), work=work) for work, rows in groups.items())
        return tuple(found) or (self,)

    @property
    def headlines(self) -> dict[str, Headline]:
        """The main results of each work, of which a sweep of one architecture has one: ""."""
        load = self.load.note if self.load.is_busy else ""
        return {one.work: headline_of(one.rows, load=load) for one in self.works}


def of_folder(stored: StoredSweep | StoredCollectives) -> Subject:
    """Analyze the content of a results folder."""
    name = stored.folder.resolve().name
    if isinstance(stored, StoredCollectives):
        return Subject(name=name, collectives=stored)
    records, environments = stored.records, stored.environments
    rows = summarize(records, environments=environments)
    load = load_of(records)
    means = [one.verification.is_sample_mean for one in records if one.verification]
    return Subject(
        name=name,
        rows=rows,
        warnings=(
            *([NOT_A_MEAN] if False in means else []),
            *([load.note] if load.note else []),
            *environment_notes(records, environments),
        ),
        load=load,
        hints=hints(rows, environments),
        explanations=explain_rows(rows),
        sweep=stored,
        unfinished=unfinished_warning(stored),
    )


def of_published(path: Path) -> Subject:
    """Read a CSV file of published numbers; raises StoreError if it has another form."""
    return Subject(name=path.name, rows=from_csv(path))

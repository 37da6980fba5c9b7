"""The subject of one report, analyzed: a results folder or a published table; and its headline: the
fastest configuration and the best scaling.

Copies that do not train together (`independent`) are never the best, nor are configurations that
did not complete or had wrong gradients. If the interval of another configuration overlaps that of
the best, the two are statistically tied, and the headline names it: overlap is a cautious test,
which suits a best that was picked out of many. A best that ran only once is tied with everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dpbench.analysis.diagnosis.explanation import Explanation, explain_rows
from dpbench.analysis.estimate import Estimate
from dpbench.analysis.noise import UNDISTURBED, Disturbance, disturbance_of
from dpbench.analysis.published import from_csv
from dpbench.analysis.remarks import environment_notes, hints
from dpbench.analysis.rows import Row, summarize
from dpbench.analysis.scaling import ran_in_turn, speedup_of
from dpbench.records.trial import NOT_A_MEAN, Status
from dpbench.specs.traits import INDEPENDENT, SINGLE
from dpbench.store import StoredCollectives, StoredSweep
from dpbench.store.unfinished import unfinished_warning


@dataclass(frozen=True, kw_only=True, slots=True)
class Best:
    """A number that no other configuration exceeds."""

    key: str
    """Key of the metric."""
    value: Estimate
    row: Row
    rivals: tuple[Row, ...]
    """Configurations that tie with it, the nearest first: their intervals overlap, and repetitions
    that ran in turn do not show that they are slower."""
    others: tuple[Row, ...]
    """All that it was compared with, the nearest first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Lead:
    """How many times as fast as another configuration the fastest one is in repetitions that ran in
    turn, so that what disturbed one disturbed both."""

    row: Row
    other: Row
    ratio: Estimate


@dataclass(frozen=True, kw_only=True, slots=True)
class Headline:
    """The results that a reader wants first; None for one that is not known."""

    fastest: Best | None = None
    scaling: Best | None = None
    """The highest efficiency at the largest number of replicas."""
    reason: str = ""
    """Why there is no fastest configuration."""
    lead: Lead | None = None
    """The lead over the nearest configuration, where it says more than the two speeds."""
    undisturbed: int = 0
    """Number of rows that it is about, if the machine was so busy that others are left out."""


def headline_of(rows: Sequence[Row], *, disturbance: Disturbance = UNDISTURBED) -> Headline:
    """The headline of all rows of one table.

    If the machine was too busy for all figures to be trusted, only rows are compared that nothing
    disturbed. Nothing is named as the fastest if these are of one implementation, if the highest
    speed is too noisy to state, or if only `single` completed.
    """
    usable = [
        row
        for row in rows
        if row.status is Status.COMPLETED
        and row.verified is not False
        and row.implementation != INDEPENDENT
    ]
    calm = [row for row in usable if row.throughput and not row.is_disturbed]
    is_partial = disturbance.is_busy and len({row.implementation for row in calm}) > 1
    compared = calm if is_partial else usable
    # Published times have no throughput; the least is the fastest.
    measured = _best(compared, "images_per_second")
    measured = measured or _best(compared, "duration_seconds", least=True)
    reason = _why_no_speed(rows, usable)
    if reason or measured is None:
        return Headline(reason=reason)
    fastest, lead = _compared_in_turn(measured)
    if disturbance.is_busy and not is_partial:
        reason = f"other load disturbed {len(usable) - len(calm)} of {len(usable)} rows"
    elif fastest.value.is_too_noisy:
        reason = "the speeds are too noisy"
    if reason:
        return Headline(reason=reason, lead=lead)
    # Where the machine was busy, an efficiency may rest on a row that was disturbed.
    scaled = [row for row in usable if row.efficiency and row.group_size > 1 and not is_partial]
    largest = max((row.group_size for row in scaled), default=0)
    scaling = _best([row for row in scaled if row.group_size == largest], "efficiency")
    return Headline(
        fastest=fastest,
        scaling=None if scaling is None or scaling.value.is_too_noisy else scaling,
        lead=lead if measured.rivals else None,
        undisturbed=len(calm) if is_partial else 0,
    )


def _why_no_speed(rows: Sequence[Row], usable: Sequence[Row]) -> str:
    """Why no row can be the fastest; empty if one can."""
    ends = {row.status.words for row in rows if row.status is not Status.COMPLETED}
    ended = f" ({', '.join(sorted(ends))})" if ends else ""
    units = sorted({row.throughput.unit for row in usable if row.throughput})
    if len(units) > 1:
        return f"speeds are in different units: {', '.join(units)}"
    if not rows:
        return "no trial was recorded"
    if not any(row.throughput or row.duration for row in usable):
        return f"no configuration completed{ended}" if ends else "no configuration has a speed"
    is_alone = all(row.implementation == SINGLE for row in usable)
    return f"no configuration but {SINGLE} completed{ended}" if is_alone and ends else ""


def _best(rows: Sequence[Row], key: str, *, least: bool = False) -> Best | None:
    """The row with the highest value of a metric, or the least, and those that tie with it."""
    measured = [row for row in rows if row[key] is not None]
    if not measured:
        return None
    best, *rest = sorted(measured, key=lambda row: row[key].value, reverse=not least)
    low, high = best[key].ends
    rivals = (row for row in rest if low <= row[key].ends[1] and row[key].ends[0] <= high)
    return Best(key=key, value=best[key], row=best, rivals=tuple(rivals), others=tuple(rest))


def _compared_in_turn(best: Best) -> tuple[Best, Lead | None]:
    """The fastest row with those rivals alone that repetitions in turn do not show to be slower,
    and its lead over the nearest of them, or if none is left over the nearest row."""
    ratios = {
        row: ratio
        for row in best.others
        if ran_in_turn(best.row.records, row.records)
        if (ratio := speedup_of(best.row.records, row.records)) and not ratio.is_too_noisy
    }
    rivals = tuple(row for row in best.rivals if row not in ratios or ratios[row].ends[0] <= 1)
    nearest = next(iter((*rivals, *best.others)), None)
    lead = None
    if nearest is not None and nearest in ratios:
        lead = Lead(row=best.row, other=nearest, ratio=ratios[nearest])
    return replace(best, rivals=rivals), lead


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """Rows of the table, and known reasons for their values.

    A published table only has `name` and `rows`; collectives have no rows.
    """

    name: str
    rows: tuple[Row, ...] = ()
    warnings: tuple[str, ...] = ()
    """Warnings before a number is believed: about machines, or the model's loss."""
    disturbance: Disturbance = UNDISTURBED
    """Other load on the machine."""
    hints: tuple[str, ...] = ()
    explanations: tuple[Explanation, ...] = ()
    """Explanations of all rows that have a speed, also of those that are too noisy."""
    sweep: StoredSweep | None = None
    collectives: StoredCollectives | None = None
    unfinished: tuple[str, ...] = ()
    """The warning that trials of the sweep are missing, if any are."""
    work_label: str = ""
    """The work of its rows, where it is one of several; their names leave it out."""

    @property
    def stored(self) -> StoredSweep | StoredCollectives | None:
        """The content of a results folder."""
        return self.sweep or self.collectives

    @property
    def by_work(self) -> tuple[Subject, ...]:
        """The subject for each work of its rows, of which a sweep of one architecture has one."""
        groups: dict[str, list[Row]] = {}
        for row in self.rows:
            named = replace(row, labels=row.labels.within_work) if row.work_label else row
            groups.setdefault(row.work_label, []).append(named)
        subjects = [replace(self, rows=(*rows,), work_label=name) for name, rows in groups.items()]
        return tuple(subjects) or (self,)

    @property
    def headlines(self) -> dict[str, Headline]:
        """The main results of each work, of which a sweep of one architecture has one: ""."""
        return {
            subject.work_label: headline_of(subject.rows, disturbance=self.disturbance)
            for subject in self.by_work
        }


def analyze(stored: StoredSweep | StoredCollectives) -> Subject:
    """Analyze the content of a results folder."""
    name = stored.folder.resolve().name
    if isinstance(stored, StoredCollectives):
        return Subject(name=name, collectives=stored)
    records, environments = stored.records, stored.environments
    rows = summarize(records, environments=environments)
    disturbance = disturbance_of(records)
    means = [r.verification.is_sample_mean for r in records if r.verification]
    return Subject(
        name=name,
        rows=rows,
        warnings=(
            *([NOT_A_MEAN] if False in means else []),
            *environment_notes(records, environments),
        ),
        disturbance=disturbance,
        hints=hints(rows, environments),
        explanations=explain_rows(rows),
        sweep=stored,
        unfinished=unfinished_warning(stored),
    )


def analyze_table(path: Path) -> Subject:
    """Read a CSV file of published numbers; raises StoreError if it has another form."""
    return Subject(name=path.name, rows=from_csv(path))

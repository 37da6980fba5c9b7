"""The subject of one report, analysed: a results folder or a published table, and its headline.

The headline is the most important results: the fastest configuration, the best scaling, the largest
loss. Copies that do not train together (`independent`) are never the best, nor are configurations
that did not complete or had wrong gradients. If the interval of another configuration overlaps that
of the best, the two are statistically tied, and the headline names it: overlap is a cautious test,
which suits a best that was picked out of many. A best that ran only once is tied with everything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dpbench.analysis.comparisons.comparability import environment_notes
from dpbench.analysis.configuration import ConfigurationSummary, by_work, completed
from dpbench.analysis.diagnosis.advice import NOTHING_LARGE, Advice, advise
from dpbench.analysis.diagnosis.explanation import Explanation, explain
from dpbench.analysis.diagnosis.hints import hints, load_notes
from dpbench.analysis.estimate import Estimate
from dpbench.analysis.losses.learning import with_equal_budgets
from dpbench.analysis.losses.loss_agreement import agreement_notes, loss_agreements
from dpbench.analysis.published import from_csv
from dpbench.analysis.precision import precision_note
from dpbench.analysis.summary import summarize
from dpbench.environment import SYNTHETIC
from dpbench.errors import UsageError
from dpbench.records import Status
from dpbench.specs import TrialSpec
from dpbench.store import StoredCollectives, StoredSweep

NOT_TRAINED_TOGETHER = "independent"
SINGLE = "single"

Rows = Sequence[ConfigurationSummary]
Read = Callable[[ConfigurationSummary], Estimate | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Best:
    """A number that no other configuration exceeds."""

    value: Estimate
    row: ConfigurationSummary
    rivals: tuple[ConfigurationSummary, ...]
    """Configurations whose intervals overlap the best one's, the nearest first."""
    others: int
    """Number of configurations it was compared with."""

    @property
    def resolved(self) -> bool:
        """False for a single run: the noise within it is far below the spread between runs, so
        nothing distinguishes the best from any other."""
        return self.value.basis == "repetitions"


@dataclass(frozen=True, kw_only=True, slots=True)
class Limit:
    """The largest loss of a configuration."""

    share: Estimate
    """Share of the step's seconds that is lost."""
    row: ConfigurationSummary
    loss: str
    """Name of the loss."""
    remedy: str
    """What to try, or why there is nothing to try."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Absent:
    """Reason why a result is missing."""

    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Headline:
    """The three results that a reader wants first."""

    fastest: Best | Absent
    scaling: Best | Absent
    """The highest efficiency at the largest number of replicas."""
    limit: Limit | Absent
    """The largest loss of the fastest configuration with more than one replica."""
    synthetic: bool = False
    """Whether the numbers come from a cost model."""
    disturbance: str | None = None
    """Other load on the machine, if that makes the figures doubtful."""


def headline(
    rows: Rows,
    explanations: Sequence[Explanation] = (),
    advice: Sequence[Sequence[Advice]] = (),
    *,
    running: bool = False,
    synthetic: bool = False,
    disturbance: str | None = None,
) -> Headline:
    """The headline of all rows of one table; `advice` belongs to `explanations`, one by one, which
    may be of more rows than these."""
    usable = [row for row in rows if _counts(row)]
    found = {
        explanation.row.configuration: tuple(lines)
        for explanation, lines in zip(explanations, advice, strict=True)
    }
    return Headline(
        fastest=_fastest(rows, usable, running=running),
        scaling=_best_scaling(rows, usable),
        limit=_limit(_fastest(rows, [row for row in usable if row.group_size > 1]), found),
        synthetic=synthetic,
        disturbance=disturbance,
    )


def trains_together(row: ConfigurationSummary) -> bool:
    """Whether replicas train together; False for copies that train independently."""
    return _is_not(NOT_TRAINED_TOGETHER, row)


def _is_not(implementation: str, row: ConfigurationSummary) -> bool:
    """Compares without the settings in brackets: "single(bf16)" is `single`."""
    return row.implementation.partition("(")[0] != implementation


def _counts(row: ConfigurationSummary) -> bool:
    completed = row.status is Status.COMPLETED and row.verified is not False
    return completed and trains_together(row)


def _fastest(rows: Rows, usable: Rows, *, running: bool = False) -> Best | Absent:
    """The fastest row by throughput; for published times, by the least time."""
    if len(units := {row.throughput.unit for row in usable if row.throughput}) > 1:
        return Absent(reason=f"speeds are in different units: {', '.join(sorted(units))}")
    best = _best(usable, lambda row: row.throughput)
    best = best or _best(usable, lambda row: row.duration, least=True)
    return best or Absent(reason=_why_no_speed(rows, running=running))


def _why_no_speed(rows: Rows, *, running: bool) -> str:
    if not rows:
        return "no trial has ended yet" if running else "no trial was recorded"
    ends = sorted({row.status.words for row in rows if row.status is not Status.COMPLETED})
    return f"no configuration completed ({', '.join(ends)})" if ends else "no speed is known"


def _best_scaling(rows: Rows, usable: Rows) -> Best | Absent:
    scaled = [row for row in usable if row.efficiency and row.group_size > 1]
    if scaled:
        largest = max(row.group_size for row in scaled)
        best = _best([row for row in scaled if row.group_size == largest], lambda r: r.efficiency)
        assert best is not None
        return best
    return Absent(reason=_why_no_scaling(rows) if usable else "no configuration completed")


def _why_no_scaling(rows: Rows) -> str:
    """Reason why there is no scaling; counts all rows, completed or not; `single` is no group of
    one replica."""
    scalable = (row for row in rows if trains_together(row) and _is_not(SINGLE, row))
    sizes = sorted({row.group_size for row in scalable})
    if not sizes:
        return f"only {SINGLE} was measured, which has one replica"
    if len(sizes) == 1:
        return f"one group size was measured ({sizes[0]}): a speedup needs 1 and a larger one"
    if 1 not in sizes:
        return (
            "no implementation was measured at group size 1, which a speedup is against; add 1 to "
            "--group-sizes"
        )
    return "no configuration completed at group size 1 and at a larger one"


def _best(rows: Rows, read: Read, *, least: bool = False) -> Best | None:
    measured = [(value, row) for row in rows if (value := read(row)) is not None]
    measured.sort(key=lambda one: one[0].value, reverse=not least)
    if not measured:
        return None
    (value, row), *rest = measured
    return Best(
        value=value,
        row=row,
        rivals=tuple(other for theirs, other in rest if _overlap(value, theirs)),
        others=len(rest),
    )


def _overlap(one: Estimate, other: Estimate) -> bool:
    (low, high), (lower, higher) = one.ends, other.ends
    return low <= higher and lower <= high


def _limit(
    best: Best | Absent, found: Mapping[TrialSpec | None, Sequence[Advice]]
) -> Limit | Absent:
    if isinstance(best, Absent):
        return Absent(reason="no configuration with more than one replica completed")
    row = best.row
    if row.configuration is None:
        return Absent(reason="published numbers do not tell: that takes the steps of every rank")
    if advice := found.get(row.configuration):
        most = advice[0]
        return Limit(share=most.share, row=row, loss=most.loss, remedy=most.remedy)
    return Absent(reason=f"{row.label}: {NOTHING_LARGE}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """Rows of the table, and known reasons for their values.

    A published table only has `name` and `rows`; a folder with only collectives has only those.
    """

    name: str
    rows: tuple[ConfigurationSummary, ...] = ()
    warnings: tuple[str, ...] = ()
    """Warnings before a number is believed: about machines, or wrong losses."""
    hints: tuple[str, ...] = ()
    loss_notes: tuple[str, ...] = ()
    """Notes on whether configurations that train on the same samples learn alike."""
    budget_notes: tuple[str, ...] = ()
    """Notes on the samples and seconds at which losses are compared, if their columns are shown."""
    explanations: tuple[Explanation, ...] = ()
    advice: tuple[tuple[Advice, ...], ...] = ()
    """Advice, one tuple for each explanation."""
    sweep: StoredSweep | None = None
    collectives: StoredCollectives | None = None
    planned: int | None = None
    """Number of trials of the whole sweep, if known."""
    running: bool = False

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes to show below a table of the rows."""
        return (*self.warnings, *self.hints, *self.loss_notes)

    @property
    def headline(self) -> Headline:
        """The main results; raises UsageError for rows of several works, which have no fastest."""
        found = self.headlines
        if len(found) > 1:
            raise UsageError(
                f"{self.name}: its rows are of several works ({'; '.join(found)}), each with a "
                "headline of its own; expected one, or take headlines"
            )
        return next(iter(found.values()))

    @property
    def headlines(self) -> dict[str, Headline]:
        """The main results of each work, of which a sweep of one architecture has one: ""."""
        disturbance = next(iter(load_notes(self.sweep.records)), None) if self.sweep else None
        return {
            work: headline(
                rows,
                self.explanations,
                self.advice,
                running=self.running,
                synthetic=self.synthetic,
                disturbance=disturbance,
            )
            for work, rows in (by_work(self.rows) or {"": ()}).items()
        }

    @property
    def synthetic(self) -> bool:
        """Whether its trials come from a cost model: nothing was run or compared."""
        environments = self.sweep.environments.values() if self.sweep else ()
        return any(environment.launcher == SYNTHETIC for environment in environments)


def of_folder(sweep: StoredSweep | None, collectives: StoredCollectives | None = None) -> Subject:
    """Analyse a results folder; it holds trials, collectives or both."""
    stored = sweep or collectives
    assert stored is not None
    name = stored.folder.resolve().name
    if sweep is None:
        return Subject(name=name, collectives=collectives)
    records, environments = sweep.records, sweep.environments
    rows = summarize(records, environments=environments, target_loss=sweep.spec.target_loss)
    rows, budget_notes = with_equal_budgets(rows, records)
    explanations = explain(records, rows)
    agreements = loss_agreements(completed(records))
    wrong = [one for one in agreements if one.is_error]
    return Subject(
        name=name,
        rows=rows,
        warnings=(
            *load_notes(records),
            *environment_notes(records, environments),
            *agreement_notes(wrong),
        ),
        hints=(
            *(hint.text for hint in hints(records, environments)),
            *_precision_notes(sweep.spec.precision, rows),
        ),
        loss_notes=tuple(agreement_notes([one for one in agreements if not one.is_error])),
        budget_notes=budget_notes,
        explanations=explanations,
        advice=advise(explanations, environments),
        sweep=sweep,
        collectives=collectives,
    )


def of_published(path: Path) -> Subject:
    """Read a CSV file of published numbers; raises StoreError if it has another form."""
    return Subject(name=path.name, rows=from_csv(path))


def _precision_notes(
    precision: float | None, rows: Sequence[ConfigurationSummary]
) -> tuple[str, ...]:
    if precision is None:
        return ()
    return (precision_note([(row.label, row.throughput) for row in rows], precision),)

"""Candidate against baseline, configuration by configuration: the slowdown, its uncertainty, and
whether it is one.

The values are those of whole runs, never of steps. Runs of two sweeps are compared by Welch's t
on logarithms; runs of one sweep by their differences within a repetition, because a repetition is
one pass of the palindrome, and what disturbed the machine then disturbed both (from `MIN_PAIRS`
repetitions on: fewer lose more degrees of freedom than that gives back).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Literal

from dpbench.analysis.comparisons.change import ALPHA, Change, Costs, change_between, holm
from dpbench.analysis.comparisons.environments import compare_environments
from dpbench.analysis.comparisons.matching import Matched, MatchedRow, Side, match
from dpbench.analysis.estimate import MIN_PAIRS, Estimate, geometric_mean
from dpbench.analysis.metric import Metric
from dpbench.analysis.metrics import COMPARED_METRICS
from dpbench.errors import NotComparable
from dpbench.messages import option_words

Outcome = Literal[
    "faster", "slower", "better", "worse", "same", "regressed", "pass", "inconclusive"
]
"""What is said of a row: the first five by `compare`, regressed and pass by `check`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparedRow:
    """One metric of one configuration on both sides. `None` means too few runs."""

    label: str
    """See MatchedRow.label."""
    metric: str
    unit: str
    baseline: Estimate | None
    candidate: Estimate | None
    change: Change | None
    """The change of the cost; None if a side has no run."""
    reason: str | None
    """Reason why it cannot be tested."""

    @property
    def slowdown(self) -> Estimate | None:
        """Ratio by which the candidate takes longer, or needs more: above 1 it is worse."""
        return None if self.change is None else self.change.estimate

    @property
    def tested(self) -> Change | None:
        """The change; None if too few runs were measured for an interval and p-values."""
        is_tested = self.change and self.change.estimate.interval
        return self.change if is_tested else None

    @property
    def repetitions(self) -> tuple[int, int]:
        """Number of compared repetitions of the baseline and of the candidate."""
        if self.change is not None:
            return self.change.repetitions
        first, second = (0 if e is None else e.sample_size for e in (self.baseline, self.candidate))
        return first, second

    def judged(self, outcome: Outcome, p_value: float | None, corrected: float | None) -> JudgedRow:
        """The row with its outcome."""
        compared = {field.name: getattr(self, field.name) for field in fields(ComparedRow)}
        return JudgedRow(**compared, outcome=outcome, p_value=p_value, p_value_corrected=corrected)


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgedRow(ComparedRow):
    """A compared row and its outcome."""

    outcome: Outcome
    p_value: float | None
    """p-value of the test that decided the outcome; None if it was not tested."""
    p_value_corrected: float | None
    """The same, corrected for the number of rows (Holm)."""

    @property
    def is_open(self) -> bool:
        """Whether it was measured and is inconclusive."""
        return self.outcome == "inconclusive" and any(self.repetitions)


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Two sides, compared."""

    matched: Matched
    rows: Mapping[str, Sequence[ComparedRow]]
    """The compared rows of each metric."""
    notes: Sequence[str]
    """What may differ between the environments of the sides, and what is on one side only."""
    differences: Sequence[str]
    """Differences between the environments that forbid a comparison unless it is forced."""


def compare_sides(
    baseline: Side,
    candidate: Side,
    metrics: Iterable[str],
    *,
    force: bool = False,
    by_candidate: bool = False,
) -> Comparison:
    """Compare two sides by each metric. Rows are named as by `match`; `classify` or `verdict.judge`
    says what they mean.

    Raises NotComparable if no configuration is on both sides, a metric was measured on neither, or,
    unless `force`, the sides come from environments that must not be compared.
    """
    matched = match(baseline, candidate, by_candidate=by_candidate)
    differences, remarks = compare_environments(matched, force=force)
    notes = [*remarks]
    for side, alone in (
        (baseline, matched.only_in_baseline),
        (candidate, matched.only_in_candidate),
    ):
        notes += [f"only in {side.label}, not compared: {'; '.join(alone)}"] if alone else []
    rows = {name: compare_rows(matched, COMPARED_METRICS[name]) for name in metrics}
    for name, compared in rows.items():
        if not compared:
            raise NotComparable(
                f"{name} was measured neither in {baseline.label} nor in {candidate.label}; take "
                f"another {option_words('metric')}"
            )
    return Comparison(matched=matched, rows=rows, notes=notes, differences=differences)


def compare_rows(matched: Matched, metric: Metric) -> tuple[ComparedRow, ...]:
    """Compare every row, except those that completed without this metric on either side."""
    compared = (_compare_row(row, metric, matched.same_passes) for row in matched.rows)
    return tuple(row for row in compared if row is not None)


def classify(rows: Sequence[ComparedRow], *, within: float) -> tuple[JudgedRow, ...]:
    """The rows of a metric with their outcomes; a difference of `within` counts as the same: 0.03
    is 3 %.

    The outcome is "same" if the whole interval of the slowdown lies between 1 / (1 + within) and
    1 + within; else faster or slower if the p-value, corrected for all rows, is below 0.05; else
    it is inconclusive.
    """
    p_values = [None if row.tested is None else row.tested.p_value for row in rows]
    classified = []
    for row, p, corrected in zip(rows, p_values, holm(p_values), strict=True):
        outcome: Outcome = "inconclusive"
        if row.slowdown is not None and corrected is not None:
            low, high = row.slowdown.ends
            is_better = row.slowdown.value < 1
            if 1 / (1 + within) <= low and high <= 1 + within:
                outcome = "same"
            elif corrected < ALPHA and COMPARED_METRICS[row.metric].is_speed:
                outcome = "faster" if is_better else "slower"
            elif corrected < ALPHA:
                outcome = "better" if is_better else "worse"
        classified.append(row.judged(outcome, p, corrected))
    return tuple(classified)


def _compare_row(matched: MatchedRow, metric: Metric, same_passes: bool) -> ComparedRow | None:
    """A row with its change, or the reason why it has none or none that can be tested; None if
    both sides completed without this metric."""
    before, now = (
        {
            record.trial.repetition: float(value)
            for record in records
            if (value := metric.of_trial(record)) is not None
        }
        for records in (matched.baseline, matched.candidate)
    )
    if not (before or now) and (matched.baseline or matched.candidate):
        return None
    costs = (
        {n: 1 / value if metric.better == "higher" else value for n, value in values.items()}
        for values in (before, now)
    )
    paired = same_passes and len(before.keys() & now.keys()) >= MIN_PAIRS
    unit = metric.unit.replace("items", matched.item)
    return ComparedRow(
        label=matched.label,
        metric=metric.key,
        unit=unit,
        baseline=geometric_mean([*before.values()], unit) if before else None,
        candidate=geometric_mean([*now.values()], unit) if now else None,
        change=change_between(*costs, paired=paired),
        reason=_untestable(matched, before, now),
    )


def _untestable(matched: MatchedRow, before: Costs, now: Costs) -> str | None:
    """Why these readings of both sides cannot be tested; None if they can."""
    sides = (("baseline", matched.baseline, before), ("candidate", matched.candidate, now))
    for name, records, readings in sides:
        if not readings:
            return f"{'not measured in' if records else 'no completed repetition of'} the {name}"
    few = [name for name, _, readings in sides if len(readings) == 1]
    return f"one repetition of the {' and the '.join(few)}" if few else None

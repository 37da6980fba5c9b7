"""Candidate against baseline, configuration by configuration: the slowdown, its uncertainty, and
whether it is one.

The values are those of whole runs, never of steps. Runs of two sweeps are compared by Welch's t
on logarithms; runs of one sweep by their differences within a repetition, because a repetition is
one pass of the palindrome, and what disturbed the machine then disturbed both (from `MIN_PAIRS`
repetitions on: fewer lose more degrees of freedom than that gives back).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from dpbench.analysis.comparisons.change import ALPHA, Change, change_between, holm
from dpbench.analysis.comparisons.environments import compare_environments
from dpbench.analysis.comparisons.matching import Matched, Records, Side, match
from dpbench.analysis.estimate import MIN_PAIRS, Estimate, geometric_mean
from dpbench.analysis.metric import Metric
from dpbench.analysis.metrics import COMPARED_METRICS
from dpbench.errors import NotComparable
from dpbench.messages import option_words

ComparisonOutcome = Literal["faster", "slower", "better", "worse", "same", "inconclusive"]
"""What `compare` says of a row."""
VerdictOutcome = Literal["regressed", "inconclusive", "pass"]
"""What `check` says of a row, of a metric, and as a whole; the worst first."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ComparedRow:
    """One metric of one configuration on both sides, and what its change means."""

    label: str
    """Name on both sides, see `Matched.rows`."""
    metric: str
    baseline_records: Records
    """The usable repetitions of the baseline."""
    candidate_records: Records
    change: Change | None
    """The change of the cost; None if a side has no run."""
    outcome: ComparisonOutcome | VerdictOutcome = "inconclusive"
    p_value: float | None = None
    """p-value of a t test: of a difference (`compare`), or of a slowdown beyond the tolerance
    (`check`); None if it was not tested."""
    p_value_corrected: float | None = None
    """The same, corrected for the number of rows (Holm)."""

    @property
    def unit(self) -> str:
        records = (*self.candidate_records, *self.baseline_records)
        item = next((record.item for record in records), "samples")
        return COMPARED_METRICS[self.metric].counting([item]).unit

    @property
    def baseline(self) -> Estimate | None:
        return self._average(self.baseline_records)

    @property
    def candidate(self) -> Estimate | None:
        return self._average(self.candidate_records)

    def _average(self, records: Records) -> Estimate | None:
        values = readings(records, COMPARED_METRICS[self.metric]).values()
        return geometric_mean([*values], self.unit) if values else None

    @property
    def slowdown(self) -> Estimate | None:
        """Ratio by which the candidate takes longer, or needs more: above 1 it is worse."""
        return None if self.change is None else self.change.estimate

    @property
    def tested(self) -> Change | None:
        """The change; None if too few runs were measured for an interval and p-values."""
        change = self.change
        return None if change is None or change.mean.squared_error is None else change

    @property
    def repetitions(self) -> tuple[int, int]:
        """Number of compared repetitions of the baseline and of the candidate."""
        if self.change is not None:
            return self.change.repetitions
        first, second = (0 if e is None else e.sample_size for e in (self.baseline, self.candidate))
        return first, second

    @property
    def reason(self) -> str | None:
        """Why it cannot be tested; None if it can."""
        sides = {"baseline": self.baseline_records, "candidate": self.candidate_records}
        counts = dict(zip(sides, self.repetitions, strict=True))
        for side, records in sides.items():
            if not counts[side]:
                missing = "not measured in" if records else "no completed repetition of"
                return f"{missing} the {side}"
        few = [side for side, count in counts.items() if count == 1]
        return f"one repetition of the {' and the '.join(few)}" if few else None

    @property
    def is_open(self) -> bool:
        """Whether it was measured and is inconclusive."""
        return self.outcome == "inconclusive" and any(self.repetitions)


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Two sides, compared."""

    matched: Matched
    rows: Mapping[str, Sequence[ComparedRow]]
    """The rows of each metric."""
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
    gives them their outcomes.

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
    rows = {name: compared_rows(matched, COMPARED_METRICS[name]) for name in metrics}
    for name, compared in rows.items():
        if not compared:
            raise NotComparable(
                f"{name} was measured neither in {baseline.label} nor in {candidate.label}; take "
                f"another {option_words('metric')}"
            )
    return Comparison(matched=matched, rows=rows, notes=notes, differences=differences)


def compared_rows(matched: Matched, metric: Metric) -> tuple[ComparedRow, ...]:
    """The rows of a metric, except those that completed without it on either side."""
    rows = []
    for label, *both in matched.rows:
        before, now = (readings(records, metric) for records in both)
        if before or now or not any(both):
            is_paired = matched.same_passes and len(before.keys() & now.keys()) >= MIN_PAIRS
            inverse = metric.better == "higher"
            costs = (
                {n: 1 / v if inverse else v for n, v in side.items()} for side in (before, now)
            )
            row = ComparedRow(
                label=label,
                metric=metric.key,
                baseline_records=both[0],
                candidate_records=both[1],
                change=change_between(*costs, paired=is_paired),
            )
            rows.append(row)
    return tuple(rows)


def readings(records: Records, metric: Metric) -> dict[int, float]:
    """The value of a metric in each repetition that has it."""
    values = ((record.trial.repetition, metric.in_trial(record)) for record in records)
    return {repetition: value for repetition, value in values if isinstance(value, int | float)}


def classify(rows: Sequence[ComparedRow], *, within: float) -> tuple[ComparedRow, ...]:
    """The rows of a metric with their outcomes; a difference of `within` counts as the same: 0.03
    is 3 %.

    The outcome is "same" if the whole interval of the slowdown lies between 1 / (1 + within) and
    1 + within; else faster or slower if the p-value, corrected for all rows, is below 0.05; else
    it is inconclusive.
    """
    p_values = [row.tested.p_value if row.tested else None for row in rows]
    classified = []
    for row, p, corrected in zip(rows, p_values, holm(p_values), strict=True):
        is_speed = COMPARED_METRICS[row.metric].is_speed
        outcome: ComparisonOutcome = "inconclusive"
        if row.tested and corrected is not None:
            low, high = row.tested.estimate.ends
            if 1 / (1 + within) <= low and high <= 1 + within:
                outcome = "same"
            elif corrected < ALPHA and row.tested.mean.value < 1:
                outcome = "faster" if is_speed else "better"
            elif corrected < ALPHA:
                outcome = "slower" if is_speed else "worse"
        classified.append(replace(row, outcome=outcome, p_value=p, p_value_corrected=corrected))
    return tuple(classified)

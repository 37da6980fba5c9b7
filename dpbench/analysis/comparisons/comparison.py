"""Candidate against baseline, configuration by configuration: the slowdown and its uncertainty.

The values are those of whole runs, never of steps. Runs of two sweeps are compared by Welch's t
on logarithms; runs of one sweep by their differences within a repetition, because a repetition is
one pass of the palindrome, and what disturbed the machine then disturbed both (from `FEWEST_PAIRS`
repetitions on: fewer lose more degrees of freedom than that gives back).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from dpbench.analysis.comparisons.change import ALPHA, Change, change_between, holm
from dpbench.analysis.comparisons.matching import Matched, Pair, Side, compare_environments, match
from dpbench.analysis.estimate import FEWEST_PAIRS, Estimate
from dpbench.analysis.metrics import COMPARED_METRICS, Metric
from dpbench.errors import NotComparable
from dpbench.records.trial import TrialRecord

RowOutcome = Literal[
    "faster", "slower", "better", "worse", "same", "inconclusive", "regressed", "pass"
]
"""What became of a row: the last two in a check, the first five in a comparison."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """One metric of one configuration on both sides. `None` means too few runs."""

    pair: Pair
    metric: str
    unit: str
    baseline: Estimate | None
    candidate: Estimate | None
    change: Change | None
    """The change of the cost; None if a side has no run."""
    reason: str | None
    """Reason why it is inconclusive."""
    p_value_corrected: float | None = None
    """p-value, corrected for the number of rows (Holm)."""
    outcome: RowOutcome = "inconclusive"

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

    @property
    def is_open(self) -> bool:
        """Whether it was measured and is inconclusive."""
        return self.outcome == "inconclusive" and any(self.repetitions)


@dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    """Two sides, compared."""

    matched: Matched
    rows: Mapping[str, Sequence[Comparison]]
    """The rows of each metric."""
    notes: Sequence[str]
    """What may differ between the environments of the sides, and what is on one side only."""
    differences: Sequence[str]
    """Differences between the environments that forbid a comparison unless it is forced."""


def compare_sides(
    baseline: Side,
    candidate: Side,
    metrics: Mapping[str, float],
    *,
    force: bool = False,
    by_candidate: bool = False,
) -> Compared:
    """Compare two sides by each metric, with the difference that counts as the same: 0.03 is 3 %.
    Rows are named as by `match`.

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
    rows = {
        name: compare_metric(matched, COMPARED_METRICS[name], within=within)
        for name, within in metrics.items()
    }
    for name, found in rows.items():
        if not found:
            raise NotComparable(
                f"{name} was measured neither in {baseline.label} nor in {candidate.label}; take "
                "another --metric"
            )
    return Compared(matched=matched, rows=rows, notes=notes, differences=differences)


def compare_metric(matched: Matched, metric: Metric, *, within: float) -> tuple[Comparison, ...]:
    """Compare every pair, except those that completed without this metric on either side.

    The result is "same" if the whole interval of the slowdown lies between 1 / (1 + within) and
    1 + within; else faster or slower if the p-value, corrected for all rows, is below 0.05; else it
    is inconclusive.
    """
    rows = []
    for pair in matched.pairs:
        baseline, candidate = _values(pair.baseline, metric), _values(pair.candidate, metric)
        if baseline or candidate or not (pair.baseline or pair.candidate):
            rows.append(_compared(pair, metric, baseline, candidate, matched.same_sweep))
    corrected = holm([None if row.tested is None else row.tested.p_value for row in rows])
    changed: tuple[RowOutcome, RowOutcome] = ("worse", "better")
    if metric.is_speed:
        changed = ("slower", "faster")
    judged = []
    for row, p in zip(rows, corrected, strict=True):
        if row.slowdown is None or p is None:
            judged.append(row)
            continue
        low, high = row.slowdown.ends
        outcome: RowOutcome = "inconclusive"
        if 1 / (1 + within) <= low and high <= 1 + within:
            outcome = "same"
        elif p < ALPHA:
            outcome = changed[row.slowdown.value < 1]
        judged.append(replace(row, p_value_corrected=p, outcome=outcome))
    return tuple(judged)


def _values(records: Sequence[TrialRecord], metric: Metric) -> dict[int, float]:
    """The values by repetition."""
    found: dict[int, Any] = {record.trial.repetition: metric.of_trial(record) for record in records}
    return {repetition: float(value) for repetition, value in found.items() if value is not None}


def _compared(
    pair: Pair,
    metric: Metric,
    baseline: Mapping[int, float],
    candidate: Mapping[int, float],
    same_sweep: bool,
) -> Comparison:
    """A pair with its change, or the reason why it has none or none that can be tested."""
    paired = same_sweep and len(baseline.keys() & candidate.keys()) >= FEWEST_PAIRS
    before, now = (
        {n: 1 / value if metric.better == "higher" else value for n, value in side.items()}
        for side in (baseline, candidate)
    )
    change, reason = change_between(before, now, paired=paired), None
    sides = (("baseline", pair.baseline, baseline), ("candidate", pair.candidate, candidate))
    if change is None:
        name, records = next((name, records) for name, records, values in sides if not values)
        reason = f"{'not measured in' if records else 'no completed repetition of'} the {name}"
    elif change.estimate.interval is None:
        few = [name for name, _, values in sides if len(values) == 1]
        reason = f"one repetition of the {' and the '.join(few)}"
    unit = metric.unit.replace("items", pair.item)
    return Comparison(
        pair=pair,
        metric=metric.key,
        unit=unit,
        baseline=metric.average([*baseline.values()], unit) if baseline else None,
        candidate=metric.average([*candidate.values()], unit) if candidate else None,
        change=change,
        reason=reason,
    )

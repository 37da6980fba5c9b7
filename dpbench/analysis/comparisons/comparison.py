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
from dpbench.analysis.comparisons.environments import compare_environments
from dpbench.analysis.comparisons.matching import Matched, Pair, Side, match
from dpbench.analysis.estimate import FEWEST_PAIRS, Estimate, geometric_mean
from dpbench.analysis.metric import Metric
from dpbench.analysis.metrics import COMPARED_METRICS
from dpbench.errors import NotComparable

RowOutcome = Literal[
    "faster", "slower", "better", "worse", "same", "inconclusive", "regressed", "pass"
]
"""What became of a row: the last two in a check, the first five in a comparison."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PairComparison:
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
class Comparison:
    """Two sides, compared."""

    matched: Matched
    rows: Mapping[str, Sequence[PairComparison]]
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
) -> Comparison:
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
    return Comparison(matched=matched, rows=rows, notes=notes, differences=differences)


def compare_metric(
    matched: Matched, metric: Metric, *, within: float
) -> tuple[PairComparison, ...]:
    """Compare every pair, except those that completed without this metric on either side.

    The result is "same" if the whole interval of the slowdown lies between 1 / (1 + within) and
    1 + within; else faster or slower if the p-value, corrected for all rows, is below 0.05; else it
    is inconclusive.
    """
    found = (compare_pair(pair, metric, matched.same_sweep) for pair in matched.pairs)
    rows = [row for row in found if row is not None]
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


def compare_pair(pair: Pair, metric: Metric, same_sweep: bool) -> PairComparison | None:
    """A pair with its change, or the reason why it has none or none that can be tested; None if
    both sides completed without this metric."""
    values: dict[str, dict[int, float]] = {}
    for name, records in (("baseline", pair.baseline), ("candidate", pair.candidate)):
        read: dict[int, Any] = {one.trial.repetition: metric.of_trial(one) for one in records}
        values[name] = {n: float(value) for n, value in read.items() if value is not None}
    missing = [name for name, found in values.items() if not found]
    if len(missing) == 2 and (pair.baseline or pair.candidate):
        return None
    before, now = (
        {n: 1 / value if metric.better == "higher" else value for n, value in found.items()}
        for found in values.values()
    )
    paired = same_sweep and len(before.keys() & now.keys()) >= FEWEST_PAIRS
    change, reason = change_between(before, now, paired=paired), None
    if missing:
        ran = pair.baseline if missing[0] == "baseline" else pair.candidate
        reason = f"{'not measured in' if ran else 'no completed repetition of'} the {missing[0]}"
    elif change is None or change.estimate.interval is None:
        few = [name for name, found in values.items() if len(found) == 1]
        reason = f"one repetition of the {' and the '.join(few)}"
    unit = metric.unit.replace("items", pair.item)

    def average(found: Mapping[int, float]) -> Estimate | None:
        return geometric_mean([*found.values()], unit) if found else None

    return PairComparison(
        pair=pair,
        metric=metric.key,
        unit=unit,
        baseline=average(values["baseline"]),
        candidate=average(values["candidate"]),
        change=change,
        reason=reason,
    )

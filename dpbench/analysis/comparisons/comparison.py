"""Candidate against baseline, configuration by configuration: the slowdown and its uncertainty.

The values are those of whole runs, never of steps. Runs of two sweeps are compared by Welch's t
on logarithms; runs of one sweep by their differences within a repetition, because a repetition is
one pass of the palindrome, and what disturbed the machine then disturbed both (from `MIN_PAIRS`
repetitions on: fewer lose more degrees of freedom than that gives back).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from dpbench.analysis.comparisons.change import ALPHA, Change, change_between, holm
from dpbench.analysis.comparisons.environments import compare_environments
from dpbench.analysis.comparisons.matching import Matched, Pair, Side, match
from dpbench.analysis.estimate import MIN_PAIRS, Estimate, geometric_mean
from dpbench.analysis.metric import Metric
from dpbench.analysis.metrics import COMPARED_METRICS
from dpbench.errors import NotComparable
from dpbench.messages import option_words

ChangeOutcome = Literal["faster", "slower", "better", "worse", "same", "inconclusive"]
"""What a comparison says of a pair."""
VerdictOutcome = Literal["regressed", "pass", "inconclusive"]
"""What a check says of a pair, of a metric, and as a whole."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparedPair:
    """One metric of one configuration on both sides. `None` means too few runs.

    `classify` tests it for `compare`, `verdict.judge` for `check`; until then it is inconclusive.
    """

    pair: Pair
    metric: str
    unit: str
    baseline: Estimate | None
    candidate: Estimate | None
    change: Change | None
    """The change of the cost; None if a side has no run."""
    reason: str | None
    """Reason why it is inconclusive."""
    p_value: float | None = None
    """p-value of the test that decided the outcome; None if it was not tested."""
    p_value_corrected: float | None = None
    """The same, corrected for the number of pairs (Holm)."""
    outcome: ChangeOutcome | VerdictOutcome = "inconclusive"

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
    pairs: Mapping[str, Sequence[ComparedPair]]
    """The compared pairs of each metric."""
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
    """Compare two sides by each metric, still without outcomes. Pairs are named as by `match`.

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
    pairs = {name: compare_pairs(matched, COMPARED_METRICS[name]) for name in metrics}
    for name, compared in pairs.items():
        if not compared:
            raise NotComparable(
                f"{name} was measured neither in {baseline.label} nor in {candidate.label}; take "
                f"another {option_words('metric')}"
            )
    return Comparison(matched=matched, pairs=pairs, notes=notes, differences=differences)


def compare_pairs(matched: Matched, metric: Metric) -> tuple[ComparedPair, ...]:
    """Compare every pair, except those that completed without this metric on either side."""
    compared = (compare_pair(pair, metric, matched.same_sweep) for pair in matched.pairs)
    return tuple(pair for pair in compared if pair is not None)


def classify(pairs: Sequence[ComparedPair], *, within: float) -> tuple[ComparedPair, ...]:
    """The pairs of a metric with their outcomes; a difference of `within` counts as the same: 0.03
    is 3 %.

    The outcome is "same" if the whole interval of the slowdown lies between 1 / (1 + within) and
    1 + within; else faster or slower if the p-value, corrected for all pairs, is below 0.05; else
    it is inconclusive.
    """
    p_values = [None if pair.tested is None else pair.tested.p_value for pair in pairs]
    classified = []
    for pair, p, corrected in zip(pairs, p_values, holm(p_values), strict=True):
        outcome: ChangeOutcome = "inconclusive"
        if pair.slowdown is not None and corrected is not None:
            low, high = pair.slowdown.ends
            is_better = pair.slowdown.value < 1
            if 1 / (1 + within) <= low and high <= 1 + within:
                outcome = "same"
            elif corrected < ALPHA and COMPARED_METRICS[pair.metric].is_speed:
                outcome = "faster" if is_better else "slower"
            elif corrected < ALPHA:
                outcome = "better" if is_better else "worse"
        classified.append(replace(pair, p_value=p, p_value_corrected=corrected, outcome=outcome))
    return tuple(classified)


def compare_pair(pair: Pair, metric: Metric, same_sweep: bool) -> ComparedPair | None:
    """A pair with its change, or the reason why it has none or none that can be tested; None if
    both sides completed without this metric."""
    values: dict[str, dict[int, float]] = {}
    for name, records in (("baseline", pair.baseline), ("candidate", pair.candidate)):
        read: dict[int, Any] = {
            record.trial.repetition: metric.of_trial(record) for record in records
        }
        values[name] = {n: float(value) for n, value in read.items() if value is not None}
    missing = [name for name, measured in values.items() if not measured]
    if len(missing) == 2 and (pair.baseline or pair.candidate):
        return None
    before, now = (
        {n: 1 / value if metric.better == "higher" else value for n, value in measured.items()}
        for measured in values.values()
    )
    paired = same_sweep and len(before.keys() & now.keys()) >= MIN_PAIRS
    change, reason = change_between(before, now, paired=paired), None
    if missing:
        ran = pair.baseline if missing[0] == "baseline" else pair.candidate
        reason = f"{'not measured in' if ran else 'no completed repetition of'} the {missing[0]}"
    elif change is None or change.estimate.interval is None:
        few = [name for name, measured in values.items() if len(measured) == 1]
        reason = f"one repetition of the {' and the '.join(few)}"
    unit = metric.unit.replace("items", pair.item)

    def average(measured: Mapping[int, float]) -> Estimate | None:
        return geometric_mean([*measured.values()], unit) if measured else None

    return ComparedPair(
        pair=pair,
        metric=metric.key,
        unit=unit,
        baseline=average(values["baseline"]),
        candidate=average(values["candidate"]),
        change=change,
        reason=reason,
    )

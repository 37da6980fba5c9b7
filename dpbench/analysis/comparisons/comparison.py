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
from dpbench.analysis.comparisons.matching import Matched, Pair
from dpbench.analysis.estimate import FEWEST_PAIRS, Estimate
from dpbench.analysis.metric import Metric
from dpbench.records.trial import TrialRecord

RowOutcome = Literal[
    "faster", "slower", "better", "worse", "same", "inconclusive", "regressed", "pass"
]
"""What became of a row: the last two in a check, the first five in a comparison."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """One configuration on both sides. `None` means too few runs."""

    label: str
    baseline_label: str
    candidate_label: str
    candidate_configuration: str
    """The candidate's name for it; `label` is what both have in common."""
    metric: str
    unit: str
    baseline: Estimate | None
    candidate: Estimate | None
    repetitions: tuple[int, int]
    """Number of compared repetitions of the baseline and of the candidate."""
    seconds: float
    """Duration of the trials of both sides together."""
    slowdown: Estimate | None
    """Ratio by which the candidate takes longer, or needs more: above 1 it is worse."""
    change: Change | None
    """The tests of the slowdown; None if it has no interval."""
    p_value_corrected: float | None = None
    """p-value, corrected for the number of rows (Holm)."""
    outcome: RowOutcome = "inconclusive"
    reason: str | None
    """Reason why it is inconclusive."""

    @property
    def is_open(self) -> bool:
        """Whether it was measured and is inconclusive."""
        return self.outcome == "inconclusive" and any(self.repetitions)

    @property
    def paired(self) -> bool:
        """Whether runs were compared repetition by repetition."""
        return self.change is not None and self.change.is_paired

    @property
    def p_value(self) -> float | None:
        """p-value of "the two sides differ"."""
        if self.change is None:
            return None
        return 2 * min(self.change.p_above(1.0), self.change.p_below(1.0))

    @property
    def minimum_detectable_effect(self) -> float | None:
        """See `Change.detectable`."""
        return None if self.change is None else self.change.detectable


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
            rows.append(_compared(pair, matched, metric, baseline, candidate))
    corrected = holm([row.p_value for row in rows])
    return tuple(
        row
        if p is None
        else replace(row, p_value_corrected=p, outcome=_outcome(row, p, metric, within))
        for row, p in zip(rows, corrected, strict=True)
    )


def _values(records: Sequence[TrialRecord], metric: Metric) -> dict[int, float]:
    """The values by repetition."""
    found: dict[int, Any] = {record.trial.repetition: metric.of_trial(record) for record in records}
    return {repetition: float(value) for repetition, value in found.items() if value is not None}


def _compared(
    pair: Pair,
    matched: Matched,
    metric: Metric,
    baseline: Mapping[int, float],
    candidate: Mapping[int, float],
) -> Comparison:
    """A pair with its change, or the reason why it has none."""
    shared = baseline.keys() & candidate.keys()
    paired = matched.same_sweep and len(shared) >= FEWEST_PAIRS
    found, reason = None, _obstacle(pair, baseline, candidate)
    if reason is None:
        costs = [
            {n: 1 / value if metric.higher_is_better else value for n, value in side.items()}
            for side in (baseline, candidate)
        ]
        found = change_between(*costs, paired=paired)
    slowdown = None if found is None else found.estimate
    if slowdown is not None and slowdown.interval is None:
        names = (("baseline", baseline), ("candidate", candidate))
        few = [name for name, values in names if len(values) == 1]
        reason = f"one repetition of the {' and the '.join(few)}" if few else "too wild a spread"
        found = None
    unit = metric.unit.replace("items", pair.item)
    return Comparison(
        label=pair.label,
        baseline_label=matched.baseline.label,
        candidate_label=matched.candidate.label,
        candidate_configuration=pair.candidate_configuration,
        metric=metric.key,
        unit=unit,
        baseline=metric.average([*baseline.values()], unit) if baseline else None,
        candidate=metric.average([*candidate.values()], unit) if candidate else None,
        repetitions=(len(shared),) * 2 if paired else (len(baseline), len(candidate)),
        seconds=sum(record.duration_seconds for record in (*pair.baseline, *pair.candidate)),
        slowdown=slowdown,
        change=found,
        reason=reason,
    )


def _outcome(row: Comparison, corrected: float, metric: Metric, within: float) -> RowOutcome:
    assert row.slowdown is not None, "rows with a change have a slowdown"
    low, high = row.slowdown.ends
    if 1 / (1 + within) <= low and high <= 1 + within:
        return "same"
    if corrected >= ALPHA:
        return "inconclusive"
    if metric.is_speed:
        return "slower" if row.slowdown.value > 1 else "faster"
    return "worse" if row.slowdown.value > 1 else "better"


def _obstacle(
    pair: Pair, baseline: Mapping[int, float], candidate: Mapping[int, float]
) -> str | None:
    """Why the two sides have no ratio; None if they have one."""
    sides = (("baseline", pair.baseline, baseline), ("candidate", pair.candidate, candidate))
    for name, records, values in sides:
        if not records:
            return f"no completed repetition of the {name}"
        if not values:
            return f"not measured in the {name}"
    return None

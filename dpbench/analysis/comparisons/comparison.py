"""Candidate against baseline, configuration by configuration: the slowdown and its uncertainty.

The values are those of whole runs, never of steps. Runs of two sweeps are compared by Welch's t
on logarithms; runs of one sweep by their differences within a repetition, because a repetition is
one pass of the palindrome, and what disturbed the machine then disturbed both (from `FEWEST_PAIRS`
repetitions on: fewer lose more degrees of freedom than that gives back).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from dpbench.analysis.comparisons.change import ALPHA, Change, Costs, change, holm
from dpbench.analysis.comparisons.matching import Group, Matched, Pair
from dpbench.analysis.estimate import FEWEST_PAIRS, Estimate
from dpbench.analysis.metric import Metric
from dpbench.analysis.scaling import efficiency_reader
from dpbench.records.trial import TrialRecord

Reading = Callable[[TrialRecord], Any]
ComparisonOutcome = Literal["faster", "slower", "better", "worse", "same", "inconclusive"]
Values = dict[int, float]
"""Values by repetition."""


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
    seconds: float = 0.0
    """Duration of the trials of both sides together."""
    slowdown: Estimate | None = None
    """Ratio by which the candidate takes longer, or needs more: above 1 it is worse."""
    change: Change | None = None
    """The tests of the slowdown; None if it has no interval."""
    p_value_corrected: float | None = None
    """p-value, corrected for the number of rows (Holm)."""
    outcome: ComparisonOutcome = "inconclusive"
    reason: str | None = None
    """Reason why it is inconclusive."""
    paired: bool = False
    """True where runs were compared repetition by repetition."""
    baseline_costs: Costs = field(default_factory=dict)
    """The values of the baseline, or 1 ÷ them if more is better; empty without a change."""
    candidate_costs: Costs = field(default_factory=dict)

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


def compare(matched: Matched, metric: Metric, *, within: float) -> tuple[Comparison, ...]:
    """Compare every pair, except those that completed without this metric on either side.

    The result is "same" if the whole interval of the slowdown lies between 1 / (1 + within) and
    1 + within; else faster or slower if the p-value, corrected for all rows, is below 0.05; else it
    is inconclusive.
    """
    first, second = (
        efficiency_reader(side.records) if metric.is_relative else metric.of_trial
        for side in (matched.baseline, matched.candidate)
    )
    found = (_compared(pair, matched, metric, first, second) for pair in matched.pairs)
    rows = [row for row in found if row is not None]
    return tuple(
        row
        if corrected is None
        else replace(
            row,
            p_value_corrected=corrected,
            outcome=_outcome(row, corrected, metric, within),
        )
        for row, corrected in zip(rows, holm([row.p_value for row in rows]), strict=True)
    )


def _compared(
    pair: Pair, matched: Matched, metric: Metric, first: Reading, second: Reading
) -> Comparison | None:
    """A pair with its change, or the reason why it has none; None if the pair completed and neither
    side has the metric.

    `first` and `second` read it from runs of the baseline and of the candidate.
    """
    baseline, candidate = _values(pair.baseline, first), _values(pair.candidate, second)
    if (pair.baseline or pair.candidate) and not (baseline or candidate):
        return None
    shared = baseline.keys() & candidate.keys()
    paired = matched.same_sweep and len(shared) >= FEWEST_PAIRS
    reason = _obstacle(pair, baseline, candidate)
    costs: list[Costs] = [{}, {}]
    if reason is None:
        costs = [
            {n: 1 / value if metric.higher_is_better else value for n, value in side.items()}
            for side in (baseline, candidate)
        ]
    found = change(*costs, paired=paired)
    slowdown = None if found is None else found.estimate
    if slowdown is not None and slowdown.interval is None:
        names = zip(("baseline", "candidate"), costs, strict=True)
        few = [name for name, values in names if len(values) == 1]
        reason = f"one repetition of the {' and the '.join(few)}" if few else "too wild a spread"
        found, costs = None, [{}, {}]
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
        seconds=sum(
            record.duration_seconds
            for group in (pair.baseline, pair.candidate)
            for record in group.values()
        ),
        slowdown=slowdown,
        change=found,
        reason=reason,
        paired=paired,
        baseline_costs=costs[0],
        candidate_costs=costs[1],
    )


def _outcome(row: Comparison, corrected: float, metric: Metric, within: float) -> ComparisonOutcome:
    assert row.slowdown is not None, "rows with a change have a slowdown"
    low, high = row.slowdown.ends
    if 1 / (1 + within) <= low and high <= 1 + within:
        return "same"
    if corrected >= ALPHA:
        return "inconclusive"
    if metric.is_speed:
        return "slower" if row.slowdown.value > 1 else "faster"
    return "worse" if row.slowdown.value > 1 else "better"


def _values(records: Group, read: Reading) -> Values:
    values = {repetition: read(record) for repetition, record in records.items()}
    return {repetition: float(value) for repetition, value in values.items() if value is not None}


def _obstacle(pair: Pair, baseline: Values, candidate: Values) -> str | None:
    """Why the two sides have no ratio; None if they have one."""
    sides = (("baseline", pair.baseline, baseline), ("candidate", pair.candidate, candidate))
    for name, records, values in sides:
        if not records:
            return f"no completed repetition of the {name}"
        if not values:
            return f"not measured in the {name}"
    for name, _, values in sides:
        if min(values.values()) <= 0:
            return f"values of the {name} that are not positive"
    return None

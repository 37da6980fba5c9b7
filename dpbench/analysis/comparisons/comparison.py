"""Candidate against baseline, configuration by configuration: the slowdown and its uncertainty.

The values are those of whole runs, never of steps. Runs of two sweeps are compared by Welch's t
on logarithms; runs of one sweep by their differences within a repetition, because a repetition is
one pass of the palindrome, and what disturbed the machine then disturbed both (from `FEWEST_PAIRS`
repetitions on: fewer lose more degrees of freedom than that gives back).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from dpbench.analysis.comparisons.differences import (
    ALPHA,
    Differences,
    detectable_difference,
    holm,
    mean_difference,
    welch,
)
from dpbench.analysis.comparisons.matching import Group, Matched, Pair
from dpbench.analysis.estimate import CONFIDENCE, FEWEST_PAIRS, LARGEST_REACH, Estimate, Floats
from dpbench.analysis.metric import Metric, Reading

ComparisonOutcome = Literal["faster", "slower", "better", "worse", "same", "inconclusive"]
Values = Mapping[int, float]
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
    difference: Differences | None = None
    """The logarithm of the slowdown, with its error."""
    p_value_corrected: float | None = None
    """p-value, corrected for the number of rows (Holm)."""
    outcome: ComparisonOutcome = "inconclusive"
    reason: str | None = None
    """Reason why it is inconclusive."""
    paired: bool = False
    """True where runs were compared repetition by repetition."""
    costs: tuple[Values, Values] = ({}, {})
    """Logarithms of the values of the baseline and of the candidate by repetition: more is
    worse."""

    @property
    def p_value(self) -> float | None:
        return None if self.difference is None else float(self.difference.p_different())

    @property
    def minimum_detectable_effect(self) -> float | None:
        """The slowdown that a two-sided test of runs as many and as noisy as these detects in 4 of
        5 cases; 0.03 is 3 %."""
        if self.difference is None:
            return None
        error, freedom = self.difference.standard_error, self.difference.degrees_of_freedom
        effect = as_slowdown(detectable_difference(error, freedom, ALPHA / 2))
        return None if effect is None else effect - 1


def as_slowdown(logarithm: float | Floats) -> float | None:
    """The slowdown with this logarithm; None for NaN, and for what no float holds."""
    reach = abs(float(logarithm))
    return math.exp(logarithm) if reach <= LARGEST_REACH else None


def compare(matched: Matched, metric: Metric, *, within: float) -> tuple[Comparison, ...]:
    """Compare every pair, except those that completed without this metric on either side.

    The result is "same" if the whole interval of the slowdown lies between 1 / (1 + within) and
    1 + within; else faster or slower if the p-value, corrected for all rows, is below 0.05; else it
    is inconclusive.
    """
    first = metric.reader(matched.baseline.records)
    second = metric.reader(matched.candidate.records)
    found = (_compared(pair, matched, metric, first, second) for pair in matched.pairs)
    rows = [_measured(row) for row in found if row is not None]
    p_values = [np.nan if row.p_value is None else row.p_value for row in rows]
    return tuple(
        row
        if row.difference is None
        else replace(
            row,
            p_value_corrected=float(corrected),
            outcome=_outcome(row, float(corrected), metric, within),
        )
        for row, corrected in zip(rows, holm(np.array(p_values)), strict=True)
    )


def _compared(
    pair: Pair, matched: Matched, metric: Metric, first: Reading, second: Reading
) -> Comparison | None:
    """The costs of a pair, or why they have no ratio; None if the pair completed and neither side
    has the metric.

    `first` and `second` read it from runs of the baseline and of the candidate.
    """
    baseline, candidate = _values(pair.baseline, first), _values(pair.candidate, second)
    if (pair.baseline or pair.candidate) and not (baseline or candidate):
        return None
    shared = baseline.keys() & candidate.keys()
    paired = matched.same_sweep and len(shared) >= FEWEST_PAIRS
    reason = _obstacle(pair, baseline, candidate)
    sign = -1.0 if metric.higher_is_better else 1.0

    def costs(values: Values) -> Values:
        return {repetition: sign * math.log(value) for repetition, value in values.items()}

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
        reason=reason,
        paired=paired,
        costs=({}, {}) if reason else (costs(baseline), costs(candidate)),
    )


def _measured(row: Comparison) -> Comparison:
    """The row with its slowdown, and with its difference if that has an interval."""
    if row.reason is not None:
        return row
    first, second = row.costs
    shared = sorted(first.keys() & second.keys())
    sides = [
        np.array([costs[n] for n in shared] if row.paired else [*costs.values()])
        for costs in row.costs
    ]
    found = mean_difference(sides[1] - sides[0]) if row.paired else welch(*sides)
    value = as_slowdown(found.center)
    low, high = map(as_slowdown, found.bounds(CONFIDENCE))
    known = low is not None and high is not None
    slowdown = None
    if value is not None:
        slowdown = Estimate(
            value=value,
            low=low if known else None,
            high=high if known else None,
            unit="×",
            sample_size=min(row.repetitions),
            basis="repetitions" if known else "single value",
        )
    if slowdown is not None and known:
        return replace(row, slowdown=slowdown, difference=found)
    names = zip(("baseline", "candidate"), row.costs, strict=True)
    few = [name for name, costs in names if len(costs) == 1]
    reason = f"one repetition of the {' and the '.join(few)}" if few else "too wild a spread"
    return replace(row, slowdown=slowdown, reason=reason, costs=({}, {}))


def _outcome(row: Comparison, corrected: float, metric: Metric, within: float) -> ComparisonOutcome:
    assert row.slowdown is not None, "rows with a difference have a slowdown"
    low, high = row.slowdown.ends
    if 1 / (1 + within) <= low and high <= 1 + within:
        return "same"
    if corrected >= ALPHA:
        return "inconclusive"
    if metric.is_speed:
        return "slower" if row.slowdown.value > 1 else "faster"
    return "worse" if row.slowdown.value > 1 else "better"


def _values(records: Group, read: Reading) -> dict[int, float]:
    values = {repetition: read(record) for repetition, record in records.items()}
    return {repetition: value for repetition, value in values.items() if value is not None}


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

"""Candidate against baseline, configuration by configuration: the slow-down and its uncertainty.

The values are those of whole runs, never of steps. Runs of two sweeps are compared by Welch's t
on logarithms; runs of one sweep by their differences within a repetition, because a repetition is
one pass of the palindrome, and what disturbed the machine then disturbed both (from `FEWEST_PAIRS`
repetitions on: fewer lose more degrees of freedom than that gives back).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from dpbench import units
from dpbench.analysis import throughput
from dpbench.analysis.comparisons.differences import (
    ALPHA,
    Differences,
    choose,
    detectable_difference,
    holm,
    paired,
    welch,
)
from dpbench.analysis.comparisons.matching import Matched, Pair
from dpbench.analysis.estimate import CONFIDENCE, FEWEST_PAIRS, Estimate, Floats
from dpbench.analysis.losses import loss_curve
from dpbench.analysis.losses.loss_curve import are_one_sample
from dpbench.analysis.metric import Metric, Reading
from dpbench.records.trial import TrialRecord

WITHIN = 0.03
LARGEST_REACH = 300.0
"""Limit of an interval of logarithms; a wider one does not fit a float and says nothing."""

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
    slowdown: Estimate | None
    """Ratio by which the candidate takes longer, or needs more: above 1 it is worse. For an
    additive metric 1 + difference ÷ the baseline's reference, such as its mean step time."""
    p_value: float | None
    p_value_corrected: float | None
    """p-value, corrected for the number of rows (Holm)."""
    outcome: ComparisonOutcome
    repetitions: tuple[int, int]
    """Number of compared repetitions of the baseline and of the candidate."""
    reason: str | None = None
    """Reason why it is inconclusive."""
    paired: bool = False
    """True where runs were compared repetition by repetition."""
    minimum_detectable_effect: float | None = None
    """The slow-down that runs as many and as noisy as these would detect; see `power`."""
    additive: bool = False
    standard_error: float | None = None
    """Standard error of the logarithm of the slow-down; if `additive`, of the slow-down itself."""
    degrees_of_freedom: float | None = None
    costs: tuple[Values, Values] = ({}, {})
    """The values of the baseline and of the candidate by repetition, on the scale of the error:
    more is worse."""

    @property
    def difference(self) -> float | None:
        """The slow-down on the scale of its standard error, where no change is 0."""
        if self.slowdown is None or self.standard_error is None:
            return None
        return self.slowdown.value - 1 if self.additive else math.log(self.slowdown.value)

    def limit(self, tolerance: float) -> float:
        """A slow-down of 1 + tolerance on that scale."""
        return tolerance if self.additive else math.log1p(tolerance)

    def as_slowdown(self, difference: float) -> float | None:
        """The slow-down for a value on that scale; None for NaN."""
        return _as_slowdown(difference, self.additive)


class _Test(NamedTuple):
    """Test result of a row; NaN if there are too few runs."""

    center: float
    standard_error: float
    degrees_of_freedom: float
    low: float
    high: float
    p_value: float
    p_value_corrected: float
    detectable: float


def compare(
    matched: Matched, metric: Metric, *, within: float = WITHIN, confidence: float = CONFIDENCE
) -> tuple[Comparison, ...]:
    """Compare every pair, except those that completed without this metric on either side.

    The result is "same" if the whole interval of the slow-down lies between 1 / (1 + within) and
    1 + within; else faster or slower if the p-value, corrected for all rows, is below 0.05; else it
    is inconclusive.
    """
    first = metric.reader(matched.baseline.records)
    second = metric.reader(matched.candidate.records)
    found = (compared_values(pair, matched, metric, first, second) for pair in matched.pairs)
    rows = [row for row in found if row is not None]
    if not rows:
        return ()
    tests = _tests(rows, metric, confidence)
    return tuple(
        _comparison(row, test, matched, metric, within, confidence)
        for row, test in zip(rows, tests, strict=True)
    )


def differences_of(comparisons: Sequence[Comparison]) -> Differences:
    """The comparisons' differences as arrays again; NaN if there is no interval."""

    def column(values: Sequence[float | None]) -> Floats:
        return np.array([math.nan if v is None else v for v in values], dtype=np.float64)

    return Differences(
        center=column([row.difference for row in comparisons]),
        standard_error=column([row.standard_error for row in comparisons]),
        degrees_of_freedom=column([row.degrees_of_freedom for row in comparisons]),
    )


def _tests(rows: Sequence[ComparedValues], metric: Metric, confidence: float) -> list[_Test]:
    baseline, candidate = _costs(rows, metric)
    side_by_side = np.array([row.paired for row in rows])
    found = choose(side_by_side, paired(baseline, candidate), welch(baseline, candidate))
    p_values = found.p_different()
    columns = (
        found.center,
        found.standard_error,
        found.degrees_of_freedom,
        *found.bounds(confidence),
        p_values,
        holm(p_values),
        detectable_difference(found.standard_error, found.degrees_of_freedom),
    )
    return [_Test(*row) for row in np.column_stack(columns).tolist()]


def _costs(rows: Sequence[ComparedValues], metric: Metric) -> tuple[Floats, Floats]:
    """Costs (lower is better), one row per pair: ± logarithms, or ± parts of the reference.

    In paired rows, column i of both is the same repetition.
    """
    longest = max(max(len(row.baseline), len(row.candidate)) for row in rows)
    sides = np.full((2, len(rows), longest), np.nan)
    for i, row in enumerate(rows):
        if row.obstacle:
            continue
        common = sorted(row.baseline.keys() & row.candidate.keys()) if row.paired else None
        for side, values in enumerate((row.baseline, row.candidate)):
            found = _cost(row, values, metric)
            shown = [found[key] for key in common] if common else list(found.values())
            sides[side, i, : len(shown)] = shown
    return sides[0], sides[1]


def _comparison(
    row: ComparedValues,
    test: _Test,
    matched: Matched,
    metric: Metric,
    within: float,
    confidence: float,
) -> Comparison:
    unit = metric.unit.replace("items", row.pair.item)
    slowdown = _slowdown(row, test, metric.additive, confidence)
    measured = slowdown is not None and slowdown.interval is not None
    effect = _as_slowdown(test.detectable, metric.additive) if measured else None
    return Comparison(
        label=row.pair.label,
        baseline_label=matched.baseline.label,
        candidate_label=matched.candidate.label,
        candidate_configuration=row.pair.candidate_configuration,
        metric=metric.key,
        unit=unit,
        baseline=metric.average([*row.baseline.values()], unit) if row.baseline else None,
        candidate=metric.average([*row.candidate.values()], unit) if row.candidate else None,
        slowdown=slowdown,
        p_value=test.p_value if measured else None,
        p_value_corrected=test.p_value_corrected if measured else None,
        outcome=_outcome(test, metric, within) if measured else "inconclusive",
        reason=None if measured else row.obstacle or _too_little(row),
        paired=row.paired,
        repetitions=row.repetitions,
        minimum_detectable_effect=None if effect is None else effect - 1,
        additive=metric.additive,
        standard_error=test.standard_error if measured else None,
        degrees_of_freedom=test.degrees_of_freedom if measured else None,
        costs=(_cost(row, row.baseline, metric), _cost(row, row.candidate, metric))
        if measured
        else ({}, {}),
    )


def _cost(row: ComparedValues, values: Values, metric: Metric) -> Values:
    """Values of which more is worse: ± logarithms, or ± parts of the reference."""
    sign = -1.0 if metric.higher_is_better else 1.0
    return {
        repetition: sign * (value / row.reference if metric.additive else math.log(value))
        for repetition, value in values.items()
    }


def _too_little(row: ComparedValues) -> str:
    sides = (("baseline", row.baseline), ("candidate", row.candidate))
    few = [name for name, values in sides if len(values) == 1]
    return f"one repetition of the {' and the '.join(few)}" if few else "too wild a spread"


def _outcome(test: _Test, metric: Metric, within: float) -> ComparisonOutcome:
    limit = within if metric.additive else math.log1p(within)
    if -limit <= test.low and test.high <= limit:
        return "same"
    if test.p_value_corrected >= ALPHA:
        return "inconclusive"
    if metric.is_speed:
        return "slower" if test.center > 0 else "faster"
    return "worse" if test.center > 0 else "better"


def _slowdown(
    row: ComparedValues, test: _Test, additive: bool, confidence: float
) -> Estimate | None:
    value = _as_slowdown(test.center, additive)
    if value is None:
        return None
    low, high = _as_slowdown(test.low, additive), _as_slowdown(test.high, additive)
    ends = low is not None and high is not None
    return Estimate(
        value=value,
        low=low if ends else None,
        high=high if ends else None,
        confidence=confidence,
        unit="×",
        sample_size=min(row.repetitions),
        basis="repetitions" if ends else "single value",
    )


def _as_slowdown(difference: float, additive: bool) -> float | None:
    if not math.isfinite(difference) or abs(difference) > LARGEST_REACH:
        return None
    return 1 + difference if additive else math.exp(difference)


class ComparedValues(NamedTuple):
    """Both sides of a pair in one metric; `obstacle` says why they have no ratio, if they have
    none."""

    pair: Pair
    baseline: Values
    candidate: Values
    paired: bool
    reference: float
    obstacle: str | None

    @property
    def repetitions(self) -> tuple[int, int]:
        """Number of compared repetitions on each side."""
        if not self.paired:
            return len(self.baseline), len(self.candidate)
        shared = len(self.baseline.keys() & self.candidate.keys())
        return shared, shared


def compared_values(
    pair: Pair, matched: Matched, metric: Metric, first: Reading, second: Reading
) -> ComparedValues | None:
    """The values of a pair; None if it completed and neither side has the metric.

    `first` and `second` read it from runs of the baseline and of the candidate.
    """
    baseline, candidate = _values(pair.baseline, first), _values(pair.candidate, second)
    if (pair.baseline or pair.candidate) and not (baseline or candidate):
        return None
    reference = 1.0
    if metric.reference is not None:
        known = _values(pair.baseline, metric.reference).values()
        reference = math.fsum(known) / len(known) if known else 0.0
    shared = baseline.keys() & candidate.keys()
    return ComparedValues(
        pair=pair,
        baseline=baseline,
        candidate=candidate,
        paired=matched.same_sweep and len(shared) >= FEWEST_PAIRS,
        reference=reference,
        obstacle=_obstacle(pair, baseline, candidate, metric, reference),
    )


def _values(records: Mapping[int, TrialRecord], read: Reading) -> dict[int, float]:
    values = {repetition: read(record) for repetition, record in records.items()}
    return {repetition: value for repetition, value in values.items() if value is not None}


def _obstacle(
    pair: Pair, baseline: Values, candidate: Values, metric: Metric, reference: float
) -> str | None:
    sides = (("baseline", pair.baseline, baseline), ("candidate", pair.candidate, candidate))
    for name, records, values in sides:
        if not records:
            return f"no completed repetition of the {name}"
        if not values:
            return f"not measured in the {name}"
    for name, _, values in sides:
        if not metric.additive and min(values.values()) <= 0:
            return f"values of the {name} that are not positive"
    if metric.counts_steps and (different := _different_steps(pair)):
        return different
    if metric.of_losses and (curve := _single_curve(pair)):
        return curve
    return None if reference > 0 else "nothing positive to relate the difference to"


def _different_steps(pair: Pair) -> str | None:
    """A note such as "timed steps differ: 50 -> 100"."""

    def warmup(records: Iterable[TrialRecord]) -> set[int]:
        return {record.trial.warmup_steps for record in records}

    def timed(records: Iterable[TrialRecord]) -> set[int]:
        return {len(throughput.step_seconds(record)) for record in records}

    for name, count in (("timed", timed), ("warmup", warmup)):
        first, second = count(pair.baseline.values()), count(pair.candidate.values())
        if len(first | second) > 1:
            return f"{name} steps differ: {units.span(first)} -> {units.span(second)}"
    return None


def _single_curve(pair: Pair) -> str | None:
    """Names a side whose repetitions are one sample, unless both sides train alike.

    Repetitions have the same seed, so their spread is rounding, and anything would be beyond it.
    """
    first, second = (
        [losses for r in records.values() if loss_curve.is_finite(losses := loss_curve.losses(r))]
        for records in (pair.baseline, pair.candidate)
    )
    if are_one_sample([*first, *second]):
        return None
    for name, curves in (("baseline", first), ("candidate", second)):
        if len(curves) > 1 and are_one_sample(curves):
            return f"repetitions of the {name} follow one loss curve: only other seeds tell"
    return None

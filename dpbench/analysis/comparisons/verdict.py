"""The verdict of a check: regressed, pass or inconclusive, over all rows of a metric at once.

One number decides: the mean change over the rows of each pass (repetition) of the sweep, as a
logarithm. What disturbs one pass disturbs all of its rows, and the mean of r rows is √r times as
precise as one, so that more rows decide sooner. The candidate regressed if that change is surely
above the tolerance, and passes if it is surely below it. "Surely" means Student's t over the passes
or an exact sign test of them, each at half the level: the first needs few passes, the second is
right whatever their spread. Five passes or more that are all more than three times the tolerance
slower need no test.

A guard per row finds what a mean hides: a single row that is slower than its tolerance is a
regression, too (one-sided t at half the level, corrected for the number of rows by Holm).

If repetitions are added until the verdict is clear, each look is a chance to err. Looks at 5, 8,
12, 18 and 27 passes, each at 5 %, would call a candidate at the tolerance regressed in 13 of 100
checks; at 2 % they do in 6 (Pocock, "Group sequential methods", 1977, has 2.1 % for five looks).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from dpbench import units
from dpbench.analysis.comparisons.comparability import check_environments
from dpbench.analysis.comparisons.comparison import Comparison, compare
from dpbench.analysis.comparisons.differences import (
    ALPHA,
    Differences,
    detectable_difference,
    holm,
    mean_difference,
    repetitions_to_settle,
    welch,
)
from dpbench.analysis.comparisons.matching import Matched, NotComparable, Side, match
from dpbench.analysis.configuration import by_configuration, outcome
from dpbench.analysis.estimate import Floats
from dpbench.analysis.metrics import METRICS
from dpbench.records.trial import Status
from dpbench.specs import TrialSpec

VerdictOutcome = Literal["regressed", "pass", "inconclusive"]
ALPHA_OF_A_LOOK = 0.02
"""Level of each one-sided test, for data that is looked at again as it grows."""
LARGE = 3.0
"""Multiples of the tolerance beyond which every pass is a regression whatever the spread."""
FEWEST_LARGE = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class RowVerdict:
    """One row, its interval, and whether it alone is a regression."""

    comparison: Comparison
    tolerance: float
    low: float | None
    """One-sided lower bound of the slowdown; None without an interval."""
    high: float | None
    confidence: float
    """Confidence of both bounds together: 0.9 for two at 95 %."""
    regressed: bool
    """Whether the guard found this row slower than its tolerance."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricVerdict:
    """All rows of one metric and one candidate together."""

    metric: str
    candidate: str
    outcome: VerdictOutcome
    tolerance: float
    slowdown: float | None
    """Mean slowdown over all rows: 1.02 is 2 % slower. None where too few runs can be compared."""
    low: float | None
    high: float | None
    passes: tuple[int, int]
    """Passes of the baseline and of the candidate that were compared."""
    repetitions_needed: int | None
    """Passes that would settle it in 4 of 5 cases, if the change is not close to the tolerance;
    None if out of reach."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """The worst outcome of its metrics."""

    outcome: VerdictOutcome
    metrics: tuple[MetricVerdict, ...]
    rows: tuple[RowVerdict, ...]


def judge(
    comparisons: Sequence[Comparison],
    tolerances: Mapping[str, float],
    *,
    alpha: float = ALPHA,
) -> Verdict:
    """Judge all comparisons by the tolerance of their metric: {"images_per_second": 0.03}.

    Raises ValueError if there is nothing to judge or a tolerance is not positive.
    """
    if not comparisons:
        raise ValueError("expected at least one comparison to judge, got none")
    if not all(tolerances[row.metric] > 0 for row in comparisons):
        raise ValueError(f"tolerance: expected numbers > 0, got {dict(tolerances)}")
    groups = [list(g) for _, g in groupby(comparisons, lambda c: (c.metric, c.candidate_label))]
    rows: list[RowVerdict] = []
    metrics: list[MetricVerdict] = []
    for group in groups:
        tolerance = tolerances[group[0].metric]
        guarded = _guarded(group, tolerance, alpha)
        rows += guarded
        # A regression of any of several metrics is one, hence a share of the level for each.
        metrics.append(_pooled(group, guarded, tolerance, alpha, alpha / len(groups)))
    outcomes = [one.outcome for one in metrics]
    worst: VerdictOutcome = "inconclusive" if "inconclusive" in outcomes else "pass"
    return Verdict(
        outcome="regressed" if "regressed" in outcomes else worst,
        metrics=tuple(metrics),
        rows=tuple(rows),
    )


def _guarded(group: Sequence[Comparison], tolerance: float, alpha: float) -> list[RowVerdict]:
    """The guard per row; rows without an interval cannot regress."""
    p_values = [
        np.nan if row.difference is None else row.difference.p_above(row.limit(tolerance))
        for row in group
    ]
    found = holm(np.array(p_values, dtype=np.float64)) < alpha / 2
    rows = []
    for row, regressed in zip(group, found, strict=True):
        ends = (np.nan, np.nan) if row.difference is None else row.difference.bounds(1 - 2 * alpha)
        rows.append(
            RowVerdict(
                comparison=row,
                tolerance=tolerance,
                low=row.as_slowdown(float(ends[0])),
                high=row.as_slowdown(float(ends[1])),
                confidence=1 - 2 * alpha,
                regressed=bool(regressed),
            )
        )
    return rows


def _pooled(
    group: Sequence[Comparison],
    rows: Sequence[RowVerdict],
    tolerance: float,
    alpha: float,
    alpha_of_regressions: float,
) -> MetricVerdict:
    first = group[0]
    baseline, candidate = _pass_means(group)
    paired = first.paired and len(baseline) == len(candidate)
    changes = candidate - baseline if paired else None
    pooled = mean_difference(changes) if changes is not None else welch(baseline, candidate)
    limit, large = first.limit(tolerance), first.limit(LARGE * tolerance)
    regressed, _ = decide(pooled, changes, limit, large, alpha_of_regressions)
    _, passed = decide(pooled, changes, limit, large, alpha)
    guarded = any(row.regressed for row in rows)
    low, high = pooled.bounds(1 - 2 * alpha)
    passes = len(baseline), len(candidate)
    error = float(pooled.standard_error)
    needed = None
    if not np.isnan(error):
        needed = repetitions_to_settle(error, passes, limit, alpha=alpha, paired=paired)
    found: VerdictOutcome = "pass" if passed and not guarded else "inconclusive"
    return MetricVerdict(
        metric=first.metric,
        candidate=first.candidate_label,
        outcome="regressed" if regressed or guarded else found,
        tolerance=tolerance,
        slowdown=first.as_slowdown(float(pooled.center)),
        low=first.as_slowdown(float(low)),
        high=first.as_slowdown(float(high)),
        passes=passes,
        repetitions_needed=needed,
    )


def _pass_means(group: Sequence[Comparison]) -> tuple[Floats, Floats]:
    """The mean cost over the rows in each pass that all rows have, for each side.

    Where the rows are paired, entry i of both is the same pass.
    """
    measured = [row for row in group if row.difference is not None]
    sides = []
    shared = [{*row.costs[0]} & {*row.costs[1]} for row in measured if row.paired]
    for side in (0, 1):
        common = shared or [{*row.costs[side]} for row in measured]
        passes = sorted(set.intersection(*common)) if common else []
        sides.append(np.array([np.mean([row.costs[side][p] for row in measured]) for p in passes]))
    return sides[0], sides[1]


def decide(
    pooled: Differences,
    changes: Floats | None,
    limit: float,
    large: float,
    alpha: float = ALPHA,
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Whether the mean change is surely above the limit, and whether it is surely below it.

    Args:
        pooled: the mean change, with its error.
        changes: the change of each pass along the last axis; None where the two sides were not
            measured in the same passes, so that only the t test applies.
        limit: the tolerance on the scale of the changes.
        large: the change beyond which a regression needs no test.
        alpha: the level of each decision.
    """
    if changes is None:
        return pooled.p_above(limit) < alpha, pooled.p_below(limit) < alpha
    count, half = changes.shape[-1], alpha / 2
    above, below = ((sign * (changes - limit) > 0).sum(axis=-1) for sign in (1, -1))
    by_sign = [binom.sf(passes - 1, count, 0.5) < half for passes in (above, below)]
    beyond = (changes > large).all(axis=-1) if count >= FEWEST_LARGE else False
    regressed = (pooled.p_above(limit) < half) | by_sign[0] | beyond
    return regressed, (pooled.p_below(limit) < half) | by_sign[1]


@dataclass(frozen=True, kw_only=True, slots=True)
class Assessment:
    """The verdict, with notes and failures."""

    verdict: Verdict
    matched: tuple[Matched, ...]
    notes: tuple[str, ...]
    failures: tuple[tuple[str, str], ...]
    """(Configuration, status and reason) of configurations that could not be measured."""

    def unsettled(self) -> frozenset[TrialSpec]:
        """The configurations, of both sides, that more repetitions may decide."""
        undecided = {one.candidate for one in self.verdict.metrics if one.outcome == "inconclusive"}
        return frozenset(
            record.trial.configuration
            for both in self.matched
            if both.candidate.label in undecided
            for pair in both.pairs
            for records in (pair.baseline, pair.candidate)
            for record in records.values()
        )


def assess(
    sides: Sequence[tuple[Side, Side]],
    tolerances: Mapping[str, float],
    *,
    force: bool = False,
    alpha: float = ALPHA,
) -> Assessment:
    """Judge (baseline, candidate) pairs by the tolerance of each metric.

    Raises NotComparable if nothing is on both sides, a metric was measured on neither, or, unless
    `force`, the sides come from environments that must not be compared.
    """
    matched = tuple(match(baseline, candidate) for baseline, candidate in sides)
    notes = [note for both in matched for note in check_environments(both, force=force)]
    comparisons: list[Comparison] = []
    for metric in tolerances:
        found = [row for both in matched for row in compare(both, METRICS[metric])]
        if not found:
            raise NotComparable(
                f"{metric} was measured in no configuration of {matched[0].baseline.label} and "
                f"{matched[0].candidate.label}; take another --metric"
            )
        comparisons += found
    notes += _left_alone(matched)
    return Assessment(
        verdict=judge(comparisons, tolerances, alpha=alpha),
        matched=matched,
        notes=tuple(dict.fromkeys(notes)),
        failures=_failures(matched),
    )


def stored_baseline_note(before: Side, metrics: Mapping[str, float], *, alpha: float) -> str | None:
    """What no number of new runs can settle, because the stored baseline has too few; else None.

    `metrics` maps each metric to its tolerance.
    """
    itself = match(before, Side(label="itself", records=before.records, environments={}))
    for metric, tolerance in metrics.items():
        group = [row for row in compare(itself, METRICS[metric]) if row.difference is not None]
        if not group:
            continue
        baseline, _ = _pass_means(group)
        alone = mean_difference(baseline)
        effect = detectable_difference(alone.standard_error, alone.degrees_of_freedom, alpha)
        if effect > group[0].limit(tolerance):
            found = group[0].as_slowdown(float(effect)) or 1.0
            return (
                f"the {units.counted(len(baseline), 'stored repetition')} of {before.label} can "
                f"settle no tolerance below {units.percent(found - 1, 2)} for {metric}, however "
                "often the candidate is measured; to measure both in turn, use --against-ref"
            )
    return None


def _left_alone(matched: Sequence[Matched]) -> list[str]:
    """Configurations without a partner; of a baseline of several candidates, those that no
    candidate has."""
    alone: dict[str, tuple[str, ...]] = {}
    for both in matched:
        for side, labels in (
            (both.baseline, both.only_in_baseline),
            (both.candidate, both.only_in_candidate),
        ):
            before = alone.get(side.label, labels)
            alone[side.label] = tuple(label for label in before if label in labels)
    return [
        f"only in {side}, not judged: {'; '.join(found)}" for side, found in alone.items() if found
    ]


def _failures(matched: Sequence[Matched]) -> tuple[tuple[str, str], ...]:
    """Failures of candidates, then of baselines; a baseline of several candidates counts once."""
    candidates = [(both.candidate, "") for both in matched]
    baselines = [(both.baseline, " (baseline)") for both in matched]
    found = {
        f"{spec.label}{role}": outcome(group)
        for side, role in (*candidates, *baselines)
        for spec, group in by_configuration(side.selected()).items()
    }
    return tuple(
        (label, f"{end.status.words}: {end.reason}")
        for label, end in found.items()
        if end.status not in (Status.COMPLETED, Status.SKIPPED)
    )

"""The verdict of a check: regressed, pass or inconclusive, in the form of an equivalence test.

A row regressed if the lower bound of its slow-down lies above 1 + tolerance, and passes if the
upper bound lies below it; both bounds are one-sided at 1 - alpha. So that no row is called
regressed by mere chance, these tests are corrected for multiplicity (Holm); passing needs no
correction, because *all* rows have to pass (intersection-union test). With 5 runs per side that
spread by 1 % and a tolerance of 3 %, an unchanged candidate passes in 99 of 100 cases, one that is
6 % slower regresses in 99, and one at the tolerance itself in 5.

If repetitions are added until a row is decided, each look at it is a chance to err. Looks at 5, 8,
12, 18 and 27 runs, each at 5 %, would call a row at the tolerance regressed in 13 of 100 cases; at
2 % they do in 6 (simulated; Pocock, "Group sequential methods", 1977, has 2.1 % for five looks at
equal distances).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dpbench import units
from dpbench.analysis.comparisons.comparability import check_environments
from dpbench.analysis.comparisons.comparison import Comparison, compare, differences_of
from dpbench.analysis.comparisons.differences import (
    ALPHA,
    Differences,
    holm,
)
from dpbench.analysis.comparisons.matching import Matched, NotComparable, Side, match
from dpbench.analysis.comparisons.power import (
    Chances,
    chances,
    detectable_difference,
    repetitions_to_settle,
)
from dpbench.analysis.configuration import by_configuration, outcome
from dpbench.analysis.estimate import Floats
from dpbench.analysis.metrics import METRICS
from dpbench.records.trial import Status
from dpbench.specs import TrialSpec

VerdictOutcome = Literal["regressed", "pass", "inconclusive"]
ALPHA_OF_A_LOOK = 0.02
"""Level of each one-sided bound, for data that is looked at again as it grows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RowVerdict:
    """One comparison against its tolerance."""

    comparison: Comparison
    outcome: VerdictOutcome
    tolerance: float
    low: float | None
    """One-sided lower bound of the slow-down; None without an interval."""
    high: float | None
    confidence: float
    """Confidence of both bounds together: 0.9 for two at 95 %."""
    p_regressed: float | None
    """p-value of the test that the slow-down exceeds the tolerance, corrected for the number of
    rows."""
    minimum_detectable_effect: float | None
    """The slow-down that these tests detect in 4 of 5 cases; see `power`."""
    chances: Chances | None
    """Chances of this row's test at the spread of its runs."""
    repetitions_needed: int | None
    """Runs per side that would settle it in 4 of 5 cases, unless the change is close to the
    tolerance; None if out of reach."""
    any_change: bool
    """Whether the 95 % interval of the slow-down excludes 1: worth a look, but no verdict."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """The worst outcome of its rows."""

    outcome: VerdictOutcome
    rows: tuple[RowVerdict, ...]


def judge(
    comparisons: Sequence[Comparison],
    tolerance: float | Mapping[str, float],
    *,
    alpha: float = ALPHA,
) -> Verdict:
    """Judge every comparison by a tolerance: 0.03 for 3 %, or one for each metric by its key.

    Raises ValueError if there is nothing to judge or a tolerance is not positive.
    """
    if not comparisons:
        raise ValueError("expected at least one comparison to judge, got none")
    tolerances = [
        tolerance[row.metric] if isinstance(tolerance, Mapping) else tolerance
        for row in comparisons
    ]
    if not all(one > 0 for one in tolerances):
        raise ValueError(f"tolerance: expected numbers > 0, got {tolerances}")
    differences = differences_of(comparisons)
    limits = np.array(
        [c.limit(one) for c, one in zip(comparisons, tolerances, strict=True)], dtype=np.float64
    )
    regressed, passed, p_values = decide(differences, limits, alpha)
    low, high = differences.bounds(1 - 2 * alpha)
    effects = detectable_difference(
        differences.standard_error, differences.degrees_of_freedom, alpha
    )
    rows = tuple(
        RowVerdict(
            comparison=row,
            outcome="regressed" if regressed[i] else "pass" if passed[i] else "inconclusive",
            tolerance=tolerances[i],
            low=row.as_slowdown(low[i]),
            high=row.as_slowdown(high[i]),
            confidence=1 - 2 * alpha,
            p_regressed=None if np.isnan(p_values[i]) else float(p_values[i]),
            minimum_detectable_effect=_share(row.as_slowdown(effects[i])),
            chances=chances(
                row.standard_error,
                row.degrees_of_freedom,
                limits[i],
                row.limit(2 * tolerances[i]),
                alpha=alpha,
                rows=len(comparisons),
            ),
            repetitions_needed=repetitions_to_settle(
                row.standard_error, row.repetitions, limits[i], alpha=alpha, paired=row.paired
            ),
            any_change=row.slowdown is not None
            and row.slowdown.interval is not None
            and not row.slowdown.contains(1.0),
        )
        for i, row in enumerate(comparisons)
    )
    return Verdict(outcome=_worst([row.outcome for row in rows]), rows=rows)


def decide(
    differences: Differences, limits: Floats, alpha: float = ALPHA
) -> tuple[NDArray[np.bool_], NDArray[np.bool_], Floats]:
    """Rows that regressed, rows that pass, and the corrected p-values of "regressed".

    The last axis holds the rows that are judged together; a row without an error is neither.
    """
    p_values = holm(differences.p_above(limits))
    return p_values < alpha, differences.p_below(limits) < alpha, p_values


def _share(slowdown: float | None) -> float | None:
    return None if slowdown is None else slowdown - 1


def _worst(outcomes: Sequence[VerdictOutcome]) -> VerdictOutcome:
    if "regressed" in outcomes:
        return "regressed"
    return "inconclusive" if "inconclusive" in outcomes else "pass"


@dataclass(frozen=True, kw_only=True, slots=True)
class Assessment:
    """The verdict, with notes and failures."""

    verdict: Verdict
    matched: tuple[Matched, ...]
    notes: tuple[str, ...]
    failures: tuple[tuple[str, str], ...]
    """(Configuration, status and reason) of configurations that could not be measured."""

    def unsettled(self) -> frozenset[TrialSpec]:
        """The configurations, of both sides, whose rows may be decided by more repetitions."""
        labels = {
            (row.comparison.candidate_label, row.comparison.label)
            for row in self.verdict.rows
            if row.outcome == "inconclusive" and row.comparison.standard_error is not None
        }
        return frozenset(
            record.trial.configuration
            for both in self.matched
            for pair in both.pairs
            if (both.candidate.label, pair.label) in labels
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
    """Judge (baseline, candidate) pairs together: Holm's correction is over all of their rows.

    `tolerances` maps metrics to the change for the worse that is allowed: {"images_per_second":
    0.03}. Raises NotComparable if nothing is on both sides, a metric was measured on neither, or,
    unless `force`, the sides come from environments that must not be compared.
    """
    matched = tuple(match(baseline, candidate, force=force) for baseline, candidate in sides)
    different = [note for both in matched for note in check_environments(both, force=force)]
    comparisons: list[Comparison] = []
    for metric in tolerances:
        found = [row for both in matched for row in compare(both, METRICS[metric])]
        if not found:
            raise NotComparable(
                f"{metric} was measured in no configuration of {matched[0].baseline.label} and "
                f"{matched[0].candidate.label}; take another --metric"
            )
        comparisons += found
    verdict = judge(comparisons, tolerances, alpha=alpha)
    return Assessment(
        verdict=verdict,
        matched=matched,
        notes=(
            *dict.fromkeys(different),
            *dict.fromkeys(note for both in matched for note in both.forced),
            *_left_alone(matched),
            *_settled(matched),
            *_beyond_reach(verdict.rows),
        ),
        failures=_failures(matched),
    )


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


def _settled(matched: Sequence[Matched]) -> list[str]:
    return [
        f"{both.baseline.label} and {both.candidate.label} differ in {'; '.join(both.settled)}"
        for both in matched
        if both.settled
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


def _beyond_reach(rows: Sequence[RowVerdict]) -> list[str]:
    """A note for each metric whose tolerance is too small for the data, on the row furthest off."""
    furthest: dict[str, tuple[float, RowVerdict]] = {}
    for row in rows:
        metric, effect = row.comparison.metric, row.minimum_detectable_effect
        if row.outcome != "inconclusive" or effect is None or effect <= row.tolerance:
            continue
        if metric not in furthest or effect > furthest[metric][0]:
            furthest[metric] = (effect, row)
    return [_beyond_reach_note(row, effect) for effect, row in furthest.values()]


def _beyond_reach_note(row: RowVerdict, effect: float) -> str:
    comparison = row.comparison
    sizes = " and ".join(map(str, dict.fromkeys(comparison.repetitions)))
    needed = row.repetitions_needed
    remedy = (
        "raise the tolerance, or find a quieter machine"
        if needed is None
        else f"raise --repetitions to {needed} or the tolerance"
    )
    return (
        f"tolerance {units.percent(row.tolerance, 3)} is below the smallest effect that {sizes} "
        f"repetitions can show here, {units.percent(effect, 3)} ({comparison.metric} of "
        f"{comparison.label}): {remedy}"
    )

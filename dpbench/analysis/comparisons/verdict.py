"""The verdict of a check: regressed, pass or inconclusive, over all rows of a metric at once.

One number decides: the mean change over the rows of each repetition of the sweep, as a logarithm.
What disturbs one repetition disturbs all of its rows, and the mean of r rows is √r times as precise
as one, so that more rows decide sooner. The candidate regressed if that change is surely above the
tolerance, and passes if it is surely below it. "Surely" means Student's t over the repetitions or
an exact sign test of them, each at half the level: the first needs few repetitions, the second is
right whatever their spread.

Each row has a verdict of its own, because a mean hides rows. A single row that is slower than its
tolerance is a regression (one-sided t at half the level, corrected for the number of rows by Holm).
A row passes by the same tests as the mean; where one does not, a strict verdict is inconclusive.

If repetitions are added until the verdict is clear, each look is a chance to err. Looks at 5, 8,
12, 18 and 27 repetitions, each at 5 %, would call a candidate at the tolerance regressed in 13 of
100 checks; at 2 % they do in 6 (Pocock, "Group sequential methods", 1977, has 2.1 % for five
looks).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from dpbench.analysis.comparisons.comparability import check_environments
from dpbench.analysis.comparisons.comparison import Comparison, as_slowdown, compare
from dpbench.analysis.comparisons.differences import (
    ALPHA,
    Differences,
    holm,
    mean_difference,
    repetitions_to_settle,
    welch,
)
from dpbench.analysis.comparisons.matching import Matched, NotComparable, Side, match
from dpbench.analysis.configuration import by_configuration, outcome
from dpbench.analysis.diagnosis.hints import is_untrustworthy
from dpbench.analysis.estimate import CONFIDENCE, Floats
from dpbench.analysis.metrics import METRICS
from dpbench.records.trial import Status

VerdictOutcome = Literal["regressed", "pass", "inconclusive"]
ALPHA_OF_A_LOOK = 0.02
"""Level of each one-sided test, for data that is looked at again as it grows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RowVerdict:
    """One row and its own verdict."""

    comparison: Comparison
    tolerance: float
    outcome: VerdictOutcome

    @property
    def is_open(self) -> bool:
        """Whether it was measured and is inconclusive."""
        return self.outcome == "inconclusive" and any(self.comparison.repetitions)


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
    """Lower end of the slowdown's 95 % interval; None without one."""
    high: float | None
    repetitions: tuple[int, int]
    """Repetitions of the baseline and of the candidate that were compared."""
    repetitions_needed: int | None
    """Repetitions that would settle it in 4 of 5 cases, if the change is not close to the
    tolerance; None if out of reach."""
    seconds_per_repetition: float = 0.0
    """Duration of one repetition of all rows of the check."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """The worst outcome of its metrics."""

    outcome: VerdictOutcome
    metrics: tuple[MetricVerdict, ...]
    rows: tuple[RowVerdict, ...]
    is_untrustworthy: bool = False
    """Whether other load disturbed so many trials of a side that more of them would not help."""

    @property
    def needs_repetitions(self) -> bool:
        """Whether more of them may decide it; they do not if one side cannot measure the rows."""
        return self.outcome == "inconclusive" and any(
            row.outcome == "inconclusive" and all(row.comparison.repetitions) for row in self.rows
        )

    def rows_of(self, one: MetricVerdict) -> list[RowVerdict]:
        """The rows that a metric's verdict is about."""
        wanted = (one.metric, one.candidate)
        return [
            row
            for row in self.rows
            if (row.comparison.metric, row.comparison.candidate_label) == wanted
        ]


def judge(
    comparisons: Sequence[Comparison],
    tolerances: Mapping[str, float],
    *,
    alpha: float = ALPHA,
    strict: bool = False,
) -> Verdict:
    """Judge all comparisons by the tolerance of their metric: {"images_per_second": 0.03}.

    A `strict` verdict passes only if no row is inconclusive.
    """
    groups = [list(g) for _, g in groupby(comparisons, lambda c: (c.metric, c.candidate_label))]
    rows: list[RowVerdict] = []
    metrics: list[MetricVerdict] = []
    for group in groups:
        tolerance = tolerances[group[0].metric]
        alone = _judged_alone(group, tolerance, alpha)
        # A regression of any of several metrics is one, hence a share of the level for each.
        together = _judged_together(
            group, alone, tolerance, alpha, alpha_of_regressions=alpha / len(groups), strict=strict
        )
        rows += [replace(alone[0], outcome=together.outcome)] if len(alone) == 1 else alone
        metrics.append(together)
    outcomes = [one.outcome for one in metrics]
    worst: VerdictOutcome = "inconclusive" if "inconclusive" in outcomes else "pass"
    return Verdict(
        outcome="regressed" if "regressed" in outcomes else worst,
        metrics=tuple(metrics),
        rows=tuple(rows),
    )


def _judged_alone(group: Sequence[Comparison], tolerance: float, alpha: float) -> list[RowVerdict]:
    """Each row by itself; rows without an interval are inconclusive."""
    limit = math.log1p(tolerance)
    p_values = [
        np.nan if row.difference is None else row.difference.p_above(limit) for row in group
    ]
    guarded = holm(np.array(p_values, dtype=np.float64)) < alpha / 2
    rows = []
    for row, regressed in zip(group, guarded, strict=True):
        found, changes, _ = _mean_change([row])
        _, passed = decide(found, changes, limit, alpha)
        rows.append(
            RowVerdict(
                comparison=row,
                tolerance=tolerance,
                outcome="regressed" if regressed else "pass" if passed else "inconclusive",
            )
        )
    return rows


def _judged_together(
    group: Sequence[Comparison],
    rows: Sequence[RowVerdict],
    tolerance: float,
    alpha: float,
    *,
    alpha_of_regressions: float,
    strict: bool,
) -> MetricVerdict:
    first = group[0]
    found, changes, repetitions = _mean_change(group)
    limit = math.log1p(tolerance)
    regressed, _ = decide(found, changes, limit, alpha_of_regressions)
    _, passed = decide(found, changes, limit, alpha)
    low, high = found.bounds(CONFIDENCE)
    outcome: VerdictOutcome = "inconclusive"
    if regressed or any(row.outcome == "regressed" for row in rows):
        outcome = "regressed"
    elif passed and not (strict and any(row.is_open for row in rows)):
        outcome = "pass"
    # Where the mean passes, what is left to settle are the rows.
    differences = [row.comparison.difference for row in rows if row.is_open] if passed else [found]
    errors = [float(one.standard_error) for one in differences if one is not None]
    needed = None
    if errors and not any(map(math.isnan, errors)):
        needed = repetitions_to_settle(
            max(errors), repetitions, limit, alpha=alpha / 2, paired=changes is not None
        )
    return MetricVerdict(
        metric=first.metric,
        candidate=first.candidate_label,
        outcome=outcome,
        tolerance=tolerance,
        slowdown=as_slowdown(found.center),
        low=as_slowdown(low),
        high=as_slowdown(high),
        repetitions=repetitions,
        repetitions_needed=needed,
    )


def _mean_change(
    group: Sequence[Comparison],
) -> tuple[Differences, Floats | None, tuple[int, int]]:
    """The mean change over the rows; the change in each repetition, None if the two sides do not
    share them; and the numbers of repetitions of both sides."""
    baseline, candidate = _means(group)
    paired = any(row.paired for row in group)
    changes = candidate - baseline if paired else None
    found = welch(baseline, candidate) if changes is None else mean_difference(changes)
    return found, changes, (len(baseline), len(candidate))


def _means(group: Sequence[Comparison]) -> tuple[Floats, Floats]:
    """The mean cost over the rows in each repetition that all rows have, for each side.

    If a row is paired, entry i of both is the same repetition.
    """
    measured = [row for row in group if row.difference is not None]
    sides = []
    for side in (0, 1):
        common = [{*row.costs[side]} for row in measured]
        if any(row.paired for row in measured):
            common = [{*row.costs[0]} & {*row.costs[1]} for row in measured]
        shared = sorted(set.intersection(*common)) if common else []
        sides.append(np.array([np.mean([row.costs[side][n] for row in measured]) for n in shared]))
    return sides[0], sides[1]


def decide(
    pooled: Differences,
    changes: Floats | None,
    limit: float,
    alpha: float = ALPHA,
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Whether the mean change is surely above the limit, and whether it is surely below it.

    Args:
        pooled: the mean change, with its error.
        changes: the change in each repetition along the last axis; None where the two sides were
            not measured in the same repetitions, so that only the t test applies.
        limit: the logarithm of 1 + the tolerance.
        alpha: the level of each decision; t decides at half of it, as a two-sided interval does.
    """
    half = alpha / 2
    above, below = pooled.p_above(limit) < half, pooled.p_below(limit) < half
    if changes is None:
        return above, below
    counts = ((sign * (changes - limit) > 0).sum(axis=-1) for sign in (1, -1))
    more, fewer = (binom.sf(count - 1, changes.shape[-1], 0.5) < half for count in counts)
    return above | more, below | fewer


@dataclass(frozen=True, kw_only=True, slots=True)
class Assessment:
    """The verdict, with notes and failures."""

    verdict: Verdict
    matched: tuple[Matched, ...]
    notes: tuple[str, ...]
    failures: tuple[tuple[str, str, float], ...]
    """(Configuration, status and reason, seconds) of configurations that could not be measured."""

    def with_pace(self, seconds: float) -> Assessment:
        """The same with the seconds that a repetition took."""
        metrics = (replace(one, seconds_per_repetition=seconds) for one in self.verdict.metrics)
        return replace(self, verdict=replace(self.verdict, metrics=tuple(metrics)))


def assess(
    sides: Sequence[tuple[Side, Side]],
    tolerances: Mapping[str, float],
    *,
    force: bool = False,
    alpha: float = ALPHA,
    strict: bool = False,
) -> Assessment:
    """Judge (baseline, candidate) pairs by the tolerance of each metric, as `judge` does.

    Raises NotComparable if nothing is on both sides, a metric was measured on neither, or, unless
    `force`, the sides come from environments that must not be compared.
    """
    matched = tuple(match(baseline, candidate) for baseline, candidate in sides)
    notes = [note for both in matched for note in check_environments(both, force=force)]
    comparisons: list[Comparison] = []
    for metric, tolerance in tolerances.items():
        found = [
            row for both in matched for row in compare(both, METRICS[metric], within=tolerance)
        ]
        if not found:
            raise NotComparable(
                f"{metric} was measured in no configuration of {matched[0].baseline.label} and "
                f"{matched[0].candidate.label}; take another --metric"
            )
        comparisons += found
    for both in matched:
        for side, alone in (
            (both.baseline, both.only_in_baseline),
            (both.candidate, both.only_in_candidate),
        ):
            notes += [f"only in {side.label}, not judged: {'; '.join(alone)}"] if alone else []
    verdict = judge(comparisons, tolerances, alpha=alpha, strict=strict)
    measured = [side.selected() for both in matched for side in (both.baseline, both.candidate)]
    trials = {id(record): record for records in measured for record in records}.values()
    repetitions = 1 + max(record.trial.repetition for record in trials)
    return Assessment(
        verdict=replace(verdict, is_untrustworthy=any(map(is_untrustworthy, measured))),
        matched=matched,
        notes=tuple(dict.fromkeys(notes)),
        failures=_failures(matched),
    ).with_pace(sum(record.duration_seconds for record in trials) / repetitions)


def _failures(matched: Sequence[Matched]) -> tuple[tuple[str, str, float], ...]:
    """Failures of candidates, then of baselines; a baseline of several candidates counts once."""
    candidates = [(both.candidate, "") for both in matched]
    baselines = [(both.baseline, " (baseline)") for both in matched]
    found = {
        f"{spec.label}{role}": (outcome(group), sum(record.duration_seconds for record in group))
        for side, role in (*candidates, *baselines)
        for spec, group in by_configuration(side.selected()).items()
    }
    return tuple(
        (label, f"{end.status.words}: {end.reason}", seconds)
        for label, (end, seconds) in found.items()
        if end.status not in (Status.COMPLETED, Status.SKIPPED)
    )

"""The verdict of a check: regressed, pass or inconclusive, over all rows of a metric at once.

One number decides: the mean change over the rows of each repetition of the sweep, as a logarithm.
What disturbs one repetition disturbs all of its rows, and the mean of r rows is √r times as precise
as one, so that more rows decide sooner. The candidate regressed if that change is surely above the
tolerance, and passes if it is surely below it. "Surely" means Student's t over the repetitions or
an exact sign test of them, each at half the level: the first needs few repetitions, the second is
right whatever their spread.

Each row has an outcome of its own, because a mean hides rows. A single row that is slower than its
tolerance is a regression (one-sided t at half the level, corrected for the number of rows by Holm).
A row passes by the same tests as the mean; one that does not leaves the verdict as it is.

A regression of any metric of any candidate is one, so they share the level of regressions equally.
All of them must pass, so each of them passes at the whole level.

If repetitions are added until the verdict is clear, each look is a chance to err, so that its
level is lower (Pocock, "Group sequential methods", 1977). In simulations, looks at 5, 8, 12, 18,
27, 41, 62 and 93 repetitions, each at 1.5 %, call a candidate at the tolerance regressed in 5 of
100 checks of one row, also where some runs are outliers.

Where other programs used more than half of the cores, nothing passes. A regression stands only if
the sides ran in turn and both were disturbed so: else the load may have come with one of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import geometric_mean
from typing import get_args

from dpbench.analysis.change import Change, Costs, change_between, holm
from dpbench.analysis.comparisons.comparison import ComparedRow, VerdictOutcome, compare_sides
from dpbench.analysis.comparisons.matching import Side
from dpbench.analysis.estimate import MIN_PAIRS, Estimate
from dpbench.analysis.noise import Disturbance, disturbance_of
from dpbench.analysis.repetitions import by_configuration, worst_status
from dpbench.records.trial import Status
from dpbench.specs import Labels

ALPHA_OF_A_LOOK = 0.015
"""Level of each one-sided test, for data that is looked at again as it grows."""
ROUND_TOLERANCES = (0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2)
"""Tolerances to suggest."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricVerdict:
    """All rows of one metric and one candidate together."""

    metric: str
    candidate: str
    outcome: VerdictOutcome
    tolerance: float
    change: Change | None
    """The mean change over all rows; None where no runs can be compared."""
    repetitions_needed: int | None
    """Repetitions that would settle it in 4 of 5 cases, if the change is not close to the
    tolerance; None if out of reach."""
    passing_tolerance: float | None
    """The smallest of ROUND_TOLERANCES above its own at which these runs would pass; None if none
    would do."""
    rows: tuple[ComparedRow, ...]
    """What was compared, each with an outcome of its own."""

    @property
    def slowdown(self) -> Estimate | None:
        """Mean slowdown over all rows: 1.02 is 2 % slower."""
        return None if self.change is None else self.change.estimate

    @property
    def repetitions(self) -> tuple[int, int]:
        """Repetitions of the baseline and of the candidate that were compared."""
        return (0, 0) if self.change is None else self.change.repetitions


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """The verdicts of all metrics, with notes and failures."""

    baseline: str
    by_metric: tuple[MetricVerdict, ...]
    notes: tuple[str, ...] = ()
    failures: tuple[tuple[str, str], ...] = ()
    """(Configuration, status and reason) of configurations that could not be measured."""
    differences: tuple[str, ...] = ()
    """Differences between the environments of the sides, which may explain the verdict: "versions:
    torch 2.13.0 -> 2.14.0"."""
    disturbance: Disturbance = field(default_factory=Disturbance)
    """How much others disturbed the trials."""

    @property
    def outcome(self) -> VerdictOutcome:
        """The worst outcome of a metric."""
        found = {verdict.outcome for verdict in self.by_metric}
        worst_first: tuple[VerdictOutcome, ...] = get_args(VerdictOutcome)
        return next(outcome for outcome in worst_first if outcome in found)

    @property
    def rows(self) -> tuple[ComparedRow, ...]:
        """The compared rows of all metrics."""
        return tuple(row for verdict in self.by_metric for row in verdict.rows)

    @property
    def needs_repetitions(self) -> bool:
        """Whether more of them may decide it; they do not if one side cannot measure the rows."""
        is_open = self.outcome == "inconclusive"
        return is_open and any(one.change is not None for one in self.by_metric)


def assess(
    sides: Sequence[tuple[Side, Side]],
    tolerances: Mapping[str, float],
    *,
    force: bool,
    alpha: float,
) -> Verdict:
    """Judge (baseline, candidate) pairs by the tolerance of each metric: {"images_per_second":
    0.03}, with one-sided tests at the level `alpha`. All have the same baseline.

    Raises NotComparable as `compare_sides` and `Comparison.rows` do.
    """
    several = len(sides) > 1
    compared = [compare_sides(*pair, force=force, by_candidate=several) for pair in sides]
    baseline = sides[0][0].selected()
    candidates = [candidate.selected() for _, candidate in sides]
    disturbance = disturbance_of(*candidates, baseline)
    labels = Labels.among(record.trial for side in (*candidates, baseline) for record in side)
    failures = []
    for records, role in (*((side, "") for side in candidates), (baseline, " (baseline)")):
        for configuration, group in by_configuration(records).items():
            status, reason = worst_status(group)
            if status not in (Status.COMPLETED, Status.SKIPPED):
                label = f"{labels.label(configuration)}{role}"
                failures.append((label, f"{status.words}: {reason}"))
    groups = {
        (metric, comparison.candidate.label): comparison.rows(metric)
        for metric in tolerances
        for comparison in compared
    }
    untrusted: tuple[VerdictOutcome, ...] = ()
    if disturbance.is_heavy:
        in_turn = all(comparison.ran_in_turn for comparison in compared)
        stands = in_turn and not disturbance.is_one_sided
        untrusted = ("pass",) if stands else ("pass", "regressed")
    return Verdict(
        baseline=sides[0][0].label,
        by_metric=judge(groups, tolerances, alpha=alpha, untrusted=untrusted),
        notes=tuple(dict.fromkeys(note for both in compared for note in both.notes)),
        failures=tuple(failures),
        differences=tuple(dict.fromkeys(line for both in compared for line in both.differences)),
        disturbance=disturbance,
    )


def judge(
    groups: Mapping[tuple[str, str], Sequence[ComparedRow]],
    tolerances: Mapping[str, float],
    *,
    alpha: float,
    untrusted: Collection[VerdictOutcome],
) -> tuple[MetricVerdict, ...]:
    """Judge the rows of each (metric, candidate) by the tolerance of the metric; `untrusted`
    outcomes become inconclusive."""
    verdicts = []
    for (metric, candidate), compared in groups.items():
        limit, level = 1 + tolerances[metric], alpha / len(groups)

        def outcome(change: Change | None, is_slower: bool, limit: float = limit) -> VerdictOutcome:
            passes = change is not None and change.is_below(limit, alpha)
            found: VerdictOutcome = "pass" if passes else "inconclusive"
            found = "regressed" if is_slower else found
            return "inconclusive" if found in untrusted else found

        mean = mean_change(compared)
        on_average = outcome(mean, mean is not None and mean.is_above(limit, level))
        rows = []
        p_values = [row.tested.p_above(limit) if row.tested else None for row in compared]
        for row, p, corrected in zip(compared, p_values, holm(p_values), strict=True):
            alone = outcome(row.change, corrected is not None and corrected < level / 2)
            own = on_average if len(compared) == 1 else alone  # a single row is its own mean
            rows.append(replace(row, outcome=own, p_value=p, p_value_corrected=corrected))
        has_regressed = any(row.outcome == "regressed" for row in rows)
        passing = (
            tolerance
            for tolerance in ROUND_TOLERANCES
            if tolerance > tolerances[metric] and mean and mean.is_below(1 + tolerance, alpha)
        )
        verdicts.append(
            MetricVerdict(
                metric=metric,
                candidate=candidate,
                outcome="regressed" if has_regressed else on_average,
                tolerance=tolerances[metric],
                change=mean,
                repetitions_needed=mean.repetitions_to_settle(limit, level / 2) if mean else None,
                passing_tolerance=next(passing, None),
                rows=tuple(rows),
            )
        )
    return tuple(verdicts)


def mean_change(rows: Iterable[ComparedRow]) -> Change | None:
    """The change of the mean cost over all tested rows, in the repetitions that all of them have;
    None if there are none.

    These may be fewer than MIN_PAIRS where rows failed in some; then the mean is not paired.
    """
    tested = [row.tested for row in rows if row.tested]
    before = _mean_costs([change.baseline for change in tested])
    after = _mean_costs([change.candidate for change in tested])
    has_pairs = len(before.keys() & after.keys()) >= MIN_PAIRS
    is_paired = has_pairs and any(change.is_paired for change in tested)
    return change_between(before, after, paired=is_paired)


def _mean_costs(of_rows: Sequence[Costs]) -> Costs:
    shared = set.intersection(*map(set, of_rows)) if of_rows else set[int]()
    return {n: geometric_mean([costs[n] for costs in of_rows]) for n in sorted(shared)}

"""The verdict of a check: regressed, pass or inconclusive, over all rows of a metric at once.

One number decides: the mean change over the rows of each repetition of the sweep, as a logarithm.
What disturbs one repetition disturbs all of its rows, and the mean of r rows is √r times as precise
as one, so that more rows decide sooner. The candidate regressed if that change is surely above the
tolerance, and passes if it is surely below it. "Surely" means Student's t over the repetitions or
an exact sign test of them, each at half the level: the first needs few repetitions, the second is
right whatever their spread.

Each row has an outcome of its own, because a mean hides rows. A single row that is slower than its
tolerance is a regression (one-sided t at half the level, corrected for the number of rows by Holm).
A row passes by the same tests as the mean; where one does not, a strict verdict is inconclusive.

A regression of any metric of any candidate is one, so they share the level of regressions equally.
All of them must pass, so each of them passes at the whole level.

If repetitions are added until the verdict is clear, each look is a chance to err. Looks at 5, 8,
12, 18 and 27 repetitions, each at 5 %, would call a candidate at the tolerance regressed in 13 of
100 checks; at 2 % they do in 6 (Pocock, "Group sequential methods", 1977, has 2.1 % for five
looks).

Where other programs used more than half of the cores, differences cannot be trusted, and every
outcome is inconclusive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import geometric_mean
from typing import Literal

from dpbench.analysis.comparisons.change import ALPHA, Change, Costs, change_between, holm
from dpbench.analysis.comparisons.comparison import PairComparison, compare_sides
from dpbench.analysis.comparisons.matching import Side
from dpbench.analysis.estimate import Estimate
from dpbench.analysis.noise import UNDISTURBED, Disturbance, disturbance_of
from dpbench.analysis.repetitions import by_configuration, outcome
from dpbench.records.trial import Status
from dpbench.specs import Labels

VerdictOutcome = Literal["regressed", "pass", "inconclusive"]
ALPHA_OF_A_LOOK = 0.02
"""Level of each one-sided test, for data that is looked at again as it grows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricVerdict:
    """All rows of one metric and one candidate together."""

    metric: str
    candidate: str
    outcome: VerdictOutcome
    tolerance: float
    mean: Change | None
    """The mean change of all rows; None where no runs can be compared."""
    repetitions_needed: int | None
    """Repetitions that would settle it in 4 of 5 cases, if the change is not close to the
    tolerance; None if out of reach."""
    rows: tuple[PairComparison, ...]
    """The rows that were compared, each with a `VerdictOutcome` of its own."""

    @property
    def slowdown(self) -> Estimate | None:
        """Mean slowdown over all rows: 1.02 is 2 % slower."""
        return None if self.mean is None else self.mean.estimate

    @property
    def repetitions(self) -> tuple[int, int]:
        """Repetitions of the baseline and of the candidate that were compared."""
        return (0, 0) if self.mean is None else self.mean.repetitions


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """The verdicts of all metrics, with notes and failures."""

    baseline: str
    metrics: tuple[MetricVerdict, ...]
    notes: tuple[str, ...] = ()
    failures: tuple[tuple[str, str], ...] = ()
    """(Configuration, status and reason) of configurations that could not be measured."""
    differences: tuple[str, ...] = ()
    """Differences between the environments of the sides, which may explain the verdict: "versions:
    torch 2.13.0 -> 2.14.0"."""
    disturbance: Disturbance = UNDISTURBED
    """How much others disturbed the trials; where heavily, every outcome is inconclusive."""

    @property
    def outcome(self) -> VerdictOutcome:
        """The worst outcome of a metric."""
        found = {one.outcome for one in self.metrics}
        worst_first: tuple[VerdictOutcome, ...] = ("regressed", "inconclusive", "pass")
        return next(one for one in worst_first if one in found)

    @property
    def rows(self) -> tuple[PairComparison, ...]:
        """The rows of all metrics."""
        return tuple(row for one in self.metrics for row in one.rows)

    @property
    def needs_repetitions(self) -> bool:
        """Whether more of them may decide it; they do not if one side cannot measure the rows."""
        return self.outcome == "inconclusive" and any(
            row.is_open and all(row.repetitions) for row in self.rows
        )


def assess(
    sides: Sequence[tuple[Side, Side]],
    tolerances: Mapping[str, float],
    *,
    force: bool = False,
    alpha: float = ALPHA,
    strict: bool = False,
) -> Verdict:
    """Judge (baseline, candidate) pairs by the tolerance of each metric: {"images_per_second":
    0.03}. All have the same baseline. A `strict` verdict passes only if no row is inconclusive.

    Raises NotComparable as `compare_sides` does.
    """
    several = len(sides) > 1
    compared = [
        compare_sides(*pair, tolerances, force=force, by_candidate=several) for pair in sides
    ]
    baseline = sides[0][0].selected()
    candidates = [candidate.selected() for _, candidate in sides]
    disturbance = disturbance_of(*candidates, baseline)
    labels = Labels.among(record.trial for side in (*candidates, baseline) for record in side)
    failures = []
    for records, role in (*((one, "") for one in candidates), (baseline, " (baseline)")):
        for spec, group in by_configuration(records).items():
            status, reason = outcome(group)
            if status not in (Status.COMPLETED, Status.SKIPPED):
                label = f"{labels.label(spec)}{role}"
                failures.append((label, f"{status.words}: {reason}"))
    groups = {
        (metric, one.matched.candidate.label): one.rows[metric]
        for metric in tolerances
        for one in compared
    }
    return Verdict(
        baseline=sides[0][0].label,
        metrics=judge(groups, tolerances, alpha=alpha, strict=strict, blocked=disturbance.is_heavy),
        notes=tuple(dict.fromkeys(note for one in compared for note in one.notes)),
        failures=tuple(failures),
        differences=tuple(dict.fromkeys(line for one in compared for line in one.differences)),
        disturbance=disturbance,
    )


def judge(
    groups: Mapping[tuple[str, str], Sequence[PairComparison]],
    tolerances: Mapping[str, float],
    *,
    alpha: float = ALPHA,
    strict: bool = False,
    blocked: bool = False,
) -> tuple[MetricVerdict, ...]:
    """Judge the rows of each (metric, candidate) by the tolerance of the metric; if `blocked`, all
    are inconclusive."""
    verdicts = []
    for (metric, candidate), group in groups.items():
        limit, level = 1 + tolerances[metric], alpha / len(groups)
        mean = mean_change(group)
        found = _pass_or_not(mean, limit, alpha)
        if mean is not None and mean.is_above(limit, level):
            found = "regressed"
        # A single row is its own mean.
        by_row = [found]
        if len(group) > 1:
            tested = [None if row.tested is None else row.tested.p_above(limit) for row in group]
            by_row = [
                "regressed"
                if p_value is not None and p_value < level / 2
                else _pass_or_not(row.tested, limit, alpha)
                for row, p_value in zip(group, holm(tested), strict=True)
            ]
        rows = tuple(
            replace(row, outcome="inconclusive" if blocked else one)
            for row, one in zip(group, by_row, strict=True)
        )
        is_open = [row.change for row in rows if row.is_open]
        # Where the mean passes, what is left to settle are the rows.
        left = is_open if found == "pass" else [mean]
        needed = [one.repetitions_to_settle(limit, level / 2) for one in left if one]
        if "regressed" in by_row:
            found = "regressed"
        elif strict and is_open and found == "pass":
            found = "inconclusive"
        verdicts.append(
            MetricVerdict(
                metric=metric,
                candidate=candidate,
                outcome="inconclusive" if blocked else found,
                tolerance=tolerances[metric],
                mean=mean,
                repetitions_needed=max(filter(None, needed), default=None) if all(needed) else None,
                rows=rows,
            )
        )
    return tuple(verdicts)


def _pass_or_not(found: Change | None, limit: float, alpha: float) -> VerdictOutcome:
    """The verdict on a change that is no regression."""
    return "pass" if found is not None and found.is_below(limit, alpha) else "inconclusive"


def mean_change(group: Sequence[PairComparison]) -> Change | None:
    """The change of the mean cost over all measured rows, in the repetitions that all of them have;
    None if there are none."""
    tested = [row.tested for row in group if row.tested is not None]
    return change_between(
        _mean_costs([one.baseline for one in tested]),
        _mean_costs([one.candidate for one in tested]),
        paired=any(one.is_paired for one in tested),
    )


def _mean_costs(rows: Sequence[Costs]) -> Costs:
    shared = set.intersection(*map(set, rows)) if rows else set[int]()
    return {n: geometric_mean([costs[n] for costs in rows]) for n in sorted(shared)}

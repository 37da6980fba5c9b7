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
from itertools import groupby
from statistics import geometric_mean
from typing import Literal

from dpbench.analysis.comparisons.change import ALPHA, Change, Costs, change_between, holm
from dpbench.analysis.comparisons.comparability import (
    check_environments,
    environment_differences,
)
from dpbench.analysis.comparisons.comparison import Comparison, compare_metric
from dpbench.analysis.comparisons.matching import Side, match
from dpbench.analysis.estimate import Estimate
from dpbench.analysis.metrics import METRICS
from dpbench.analysis.repetitions import by_configuration, is_heavy, is_untrustworthy, outcome
from dpbench.errors import NotComparable
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
    slowdown: Estimate | None
    """Mean slowdown over all rows: 1.02 is 2 % slower. None where no runs can be compared."""
    repetitions: tuple[int, int]
    """Repetitions of the baseline and of the candidate that were compared."""
    repetitions_needed: int | None
    """Repetitions that would settle it in 4 of 5 cases, if the change is not close to the
    tolerance; None if out of reach."""
    rows: tuple[Comparison, ...]
    """The rows that were compared, each with a `VerdictOutcome` of its own."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """The worst outcome of its metrics, with notes and failures."""

    outcome: VerdictOutcome
    metrics: tuple[MetricVerdict, ...]
    notes: tuple[str, ...] = ()
    failures: tuple[tuple[str, str, float], ...] = ()
    """(Configuration, status and reason, seconds) of configurations that could not be measured."""
    differences: tuple[str, ...] = ()
    """Differences between the environments of the sides, which may explain the verdict: "versions:
    torch 2.13.0 -> 2.14.0"."""
    is_untrustworthy: bool = False
    """Whether other load disturbed so many trials of a side that more of them would not help."""
    seconds: float = 0.0
    """Duration of all trials of both sides."""
    seconds_per_repetition: float = 0.0
    """Duration of one repetition of all rows of the check."""

    @property
    def rows(self) -> tuple[Comparison, ...]:
        """The rows of all metrics."""
        return tuple(row for one in self.metrics for row in one.rows)

    @property
    def needs_repetitions(self) -> bool:
        """Whether more of them may decide it; they do not if one side cannot measure the rows."""
        return self.outcome == "inconclusive" and any(
            row.is_open and all(row.repetitions) for row in self.rows
        )

    @property
    def undecided(self) -> Verdict:
        """The same numbers with every outcome inconclusive."""
        metrics = (
            replace(
                one,
                outcome="inconclusive",
                rows=tuple(replace(row, outcome="inconclusive") for row in one.rows),
            )
            for one in self.metrics
        )
        return replace(self, outcome="inconclusive", metrics=tuple(metrics))


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
    groups = [[*g] for _, g in groupby(comparisons, lambda c: (c.metric, c.candidate_label))]
    metrics = []
    for group in groups:
        first, tolerance, level = group[0], tolerances[group[0].metric], alpha / len(groups)
        limit, mean = 1 + tolerance, mean_change(group)
        found = _decide(mean, limit, alpha, level)
        # A single row is its own mean.
        by_row = [found] if len(group) == 1 else _judge_rows(group, limit, alpha, level)
        rows = tuple(replace(row, outcome=one) for row, one in zip(group, by_row, strict=True))
        is_open = [row.change for row in rows if row.is_open]
        # Where the mean passes, what is left to settle are the rows.
        left = is_open if found == "pass" else [mean]
        needed = [one.repetitions_to_settle(limit, level / 2) for one in left if one]
        if "regressed" in by_row:
            found = "regressed"
        elif strict and is_open and found == "pass":
            found = "inconclusive"
        metrics.append(
            MetricVerdict(
                metric=first.metric,
                candidate=first.candidate_label,
                outcome=found,
                tolerance=tolerance,
                slowdown=None if mean is None else mean.estimate,
                repetitions=mean.repetitions if mean else (0, 0),
                repetitions_needed=max(filter(None, needed), default=None) if all(needed) else None,
                rows=rows,
            )
        )
    outcomes = {one.outcome for one in metrics}
    worst_first: tuple[VerdictOutcome, ...] = ("regressed", "inconclusive", "pass")
    worst = next(one for one in worst_first if one in outcomes)
    return Verdict(outcome=worst, metrics=tuple(metrics))


def _decide(found: Change | None, limit: float, alpha: float, level: float) -> VerdictOutcome:
    """The verdict on one change, with the `level` of regressions; inconclusive also if too few runs
    were measured."""
    if found is None or found.estimate.interval is None:
        return "inconclusive"
    if found.is_above(limit, level):
        return "regressed"
    return "pass" if found.is_below(limit, alpha) else "inconclusive"


def _judge_rows(
    group: Sequence[Comparison], limit: float, alpha: float, level: float
) -> list[VerdictOutcome]:
    """Each row by itself."""
    p_values = holm([None if row.change is None else row.change.p_above(limit) for row in group])
    return [
        "regressed"
        if p_value is not None and p_value < level / 2
        else "pass"
        if row.change is not None and row.change.is_below(limit, alpha)
        else "inconclusive"
        for row, p_value in zip(group, p_values, strict=True)
    ]


def mean_change(group: Sequence[Comparison]) -> Change | None:
    """The change of the mean cost over all measured rows, in the repetitions that all of them have;
    None if there are none."""
    measured = [row.change for row in group if row.change is not None]
    return change_between(
        _mean_costs([one.baseline for one in measured]),
        _mean_costs([one.candidate for one in measured]),
        paired=any(one.is_paired for one in measured),
    )


def _mean_costs(rows: Sequence[Costs]) -> Costs:
    shared = set.intersection(*map(set, rows)) if rows else set[int]()
    return {n: geometric_mean([costs[n] for costs in rows]) for n in sorted(shared)}


def assess(
    sides: Sequence[tuple[Side, Side]],
    tolerances: Mapping[str, float],
    *,
    force: bool = False,
    alpha: float = ALPHA,
    strict: bool = False,
) -> Verdict:
    """Judge (baseline, candidate) pairs by the tolerance of each metric, as `judge` does.

    Raises NotComparable if nothing is on both sides, a metric was measured on neither, or, unless
    `force`, the sides come from environments that must not be compared.
    """
    matched = [match(baseline, candidate) for baseline, candidate in sides]
    notes = [note for both in matched for note in check_environments(both, force=force)]
    comparisons: list[Comparison] = []
    for metric, tolerance in tolerances.items():
        found = [
            row
            for both in matched
            for row in compare_metric(both, METRICS[metric], within=tolerance)
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
    candidates = [(candidate.selected(), "") for _, candidate in sides]
    baselines = [(baseline.selected(), " (baseline)") for baseline, _ in sides]
    measured = [*candidates, *baselines]
    trials = {id(record): record for records, _ in measured for record in records}.values()
    labels = Labels.among(record.trial for record in trials)
    # By its label, so that a baseline of several candidates counts once.
    failures: dict[str, tuple[str, str, float]] = {}
    for records, role in measured:
        for spec, group in by_configuration(records).items():
            status, reason = outcome(group)
            if status not in (Status.COMPLETED, Status.SKIPPED):
                took = sum(record.duration_seconds for record in group)
                label = f"{labels.configuration(spec)}{role}"
                failures[label] = (label, f"{status.words}: {reason}", took)
    seconds = sum(record.duration_seconds for record in trials)
    verdict = judge(comparisons, tolerances, alpha=alpha, strict=strict)
    return replace(
        verdict.undecided if any(is_heavy(records) for records, _ in measured) else verdict,
        notes=tuple(dict.fromkeys(notes)),
        failures=tuple(failures.values()),
        differences=tuple(
            dict.fromkeys(one for both in matched for one in environment_differences(both))
        ),
        is_untrustworthy=any(is_untrustworthy(records) for records, _ in measured),
        seconds=seconds,
        seconds_per_repetition=seconds / (1 + max(one.trial.repetition for one in trials)),
    )

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

A regression of any metric is one, so they share the level of regressions equally. All of them must
pass, so each of them passes at the whole level.

If repetitions are added until the verdict is clear, each look is a chance to err, so that its
level is lower (Pocock, "Group sequential methods", 1977). In simulations, looks at 5, 8, 12, 18,
27, 41, 62 and 93 repetitions, each at 1.5 %, call a candidate at the tolerance regressed in 5 of
100 checks of one row, also where some runs are outliers.

Where other programs used more than half of the cores, nothing passes. A regression stands only if
the sides ran in turn and both were under such load: else the load may have come with one of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import get_args

from dpbench.analysis.change import Change, change_between, holm, mean_costs
from dpbench.analysis.comparisons.comparison import (
    ComparedRow,
    JudgedRow,
    VerdictOutcome,
    compare_sides,
)
from dpbench.analysis.comparisons.matching import Side
from dpbench.analysis.estimate import MIN_PAIRS
from dpbench.analysis.noise import Load, load_of
from dpbench.analysis.repetitions import by_configuration, worst_status
from dpbench.records.trial import Status
from dpbench.specs import Labels

ALPHA_OF_A_LOOK = 0.015
"""Level of each one-sided test, for data that is looked at again as it grows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """When a change of the cost is a regression, and when it passes."""

    tolerance: float
    pass_level: float
    """Level of each one-sided test for a pass."""
    regress_level: float
    """Level of those for a regression, which all metrics share."""
    untrusted: tuple[VerdictOutcome, ...]
    """Outcomes that the load on the machine forbids to believe; they are inconclusive."""

    @property
    def limit(self) -> float:
        """The largest ratio of costs that is accepted."""
        return 1 + self.tolerance

    def is_slower(self, change: Change | None) -> bool:
        """Whether the change is surely above the tolerance."""
        return change is not None and change.is_above(self.limit, self.regress_level)

    def outcome(self, change: Change | None, *, is_slower: bool) -> VerdictOutcome:
        """The outcome of a change, which a test may have called slower."""
        passes = change is not None and change.is_below(self.limit, self.pass_level)
        found: VerdictOutcome = "regressed" if is_slower else "pass" if passes else "inconclusive"
        return "inconclusive" if found in self.untrusted else found


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricVerdict:
    """All rows of one metric together."""

    metric: str
    rule: Rule
    change: Change | None
    """The mean change of the cost over all rows; None where no runs can be compared."""
    rows: tuple[JudgedRow, ...]
    """The compared rows, each with an outcome of its own."""

    @property
    def outcome(self) -> VerdictOutcome:
        """Regressed if a single row is; else the outcome of the mean change."""
        if any(row.outcome == "regressed" for row in self.rows):
            return "regressed"
        return self.rule.outcome(self.change, is_slower=self.rule.is_slower(self.change))

    @property
    def repetitions_needed(self) -> int | None:
        """Repetitions that would settle it in 4 of 5 cases, if the change is not close to the
        tolerance; None if out of reach."""
        if self.change is None:
            return None
        return self.change.repetitions_to_settle(self.rule.limit, self.rule.regress_level / 2)


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """The verdicts of all metrics, with notes and failures."""

    baseline: str
    candidate: str
    by_metric: tuple[MetricVerdict, ...]
    notes: tuple[str, ...] = ()
    failures: tuple[tuple[str, str], ...] = ()
    """(Configuration, status and reason) of configurations that could not be measured."""
    differences: tuple[str, ...] = ()
    """Differences between the environments of the sides, which may explain the verdict: "versions:
    torch 2.13.0 -> 2.14.0"."""
    load: Load = field(default_factory=Load)
    """Other load on the machine."""
    ran_in_turn: bool = False
    """Whether both sides were measured in one run, repetition by repetition."""

    @property
    def outcome(self) -> VerdictOutcome:
        """The worst outcome of a metric."""
        found = {verdict.outcome for verdict in self.by_metric}
        worst_first: tuple[VerdictOutcome, ...] = get_args(VerdictOutcome)
        return next(outcome for outcome in worst_first if outcome in found)

    @property
    def load_matters(self) -> bool:
        """Whether load on the machine could change it: all but a regression between sides that ran
        in turn, which had the load together."""
        return self.outcome != "regressed" or not self.ran_in_turn

    @property
    def rows(self) -> tuple[JudgedRow, ...]:
        """The compared rows of all metrics."""
        return tuple(row for verdict in self.by_metric for row in verdict.rows)

    @property
    def needs_repetitions(self) -> bool:
        """Whether more of them may decide it; they do not if one side cannot measure the rows."""
        is_open = self.outcome == "inconclusive"
        return is_open and any(one.change is not None for one in self.by_metric)


def assess(
    baseline: Side, candidate: Side, tolerances: Mapping[str, float], *, force: bool, alpha: float
) -> Verdict:
    """Judge the candidate by the tolerance of each metric: {"images_per_second": 0.03}, with
    one-sided tests at the level `alpha`.

    Raises NotComparable as `compare_sides` and `Comparison.rows` do.
    """
    compared = compare_sides(baseline, candidate, force=force)
    sides = {"": candidate.selected(), " (baseline)": baseline.selected()}
    load = load_of(*sides.values())
    labels = Labels.among(record.configuration for records in sides.values() for record in records)
    failures = []
    for role, records in sides.items():
        for configuration, group in by_configuration(records).items():
            status, reason = worst_status(group)
            if status not in (Status.COMPLETED, Status.SKIPPED):
                label = f"{labels.label(configuration)}{role}"
                failures.append((label, f"{status.words}: {reason}"))
    untrusted: tuple[VerdictOutcome, ...] = ()
    if load.spoils_differences:
        are_both = all(load_of(records).spoils_differences for records in sides.values())
        untrusted = ("pass",) if compared.ran_in_turn and are_both else ("pass", "regressed")
    share = alpha / len(tolerances)
    rules = {
        metric: Rule(
            tolerance=tolerance, pass_level=alpha, regress_level=share, untrusted=untrusted
        )
        for metric, tolerance in tolerances.items()
    }
    return Verdict(
        baseline=baseline.label,
        candidate=candidate.label,
        by_metric=tuple(judge_metric(key, compared.rows(key), rules[key]) for key in rules),
        notes=compared.notes,
        failures=tuple(failures),
        differences=compared.differences,
        load=load,
        ran_in_turn=compared.ran_in_turn,
    )


def judge_metric(metric: str, rows: Sequence[ComparedRow], rule: Rule) -> MetricVerdict:
    """Judge the mean of the rows, and each of them. A single row is its own mean."""
    mean = mean_change(rows)
    p_values = [row.tested.p_above(rule.limit) if row.tested else None for row in rows]
    judged = []
    for row, p, corrected in zip(rows, p_values, holm(p_values), strict=True):
        is_slower = corrected is not None and corrected < rule.regress_level / 2
        if len(rows) == 1:
            is_slower = rule.is_slower(mean)
        outcome = rule.outcome(row.change, is_slower=is_slower)
        judged.append(JudgedRow.of(row, outcome=outcome, p_value=p, p_value_corrected=corrected))
    return MetricVerdict(metric=metric, rule=rule, change=mean, rows=tuple(judged))


def mean_change(rows: Iterable[ComparedRow]) -> Change | None:
    """The change of the mean cost over all tested rows, in the repetitions that all of them have;
    None if there are none.

    These may be fewer than MIN_PAIRS where rows failed in some; then the mean is not paired.
    """
    tested = [row.tested for row in rows if row.tested]
    before = mean_costs([change.baseline for change in tested])
    after = mean_costs([change.candidate for change in tested])
    has_pairs = len(before.keys() & after.keys()) >= MIN_PAIRS
    is_paired = has_pairs and any(change.is_paired for change in tested)
    return change_between(before, after, paired=is_paired)

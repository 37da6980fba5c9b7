"""The verdicts of a check: regressed, pass or inconclusive, over all rows of a metric at once.

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

If repetitions are added until the verdict is clear, each interim analysis is a chance to err, so
that its level is lower (Pocock, "Group sequential methods", 1977). In simulations, analyses at 5,
8, 12, 18, 27, 41, 62 and 93 repetitions, each at 1.5 %, call a candidate at the tolerance regressed
in 5 of 100 checks of one row, also where some runs are outliers.

Where other programs used more than half of the cores, nothing passes. A regression stands only if
the sides ran in turn and both were under such load: else the load may have come with one of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from dpbench.analysis.change import Change, change_between, mean_per_repetition
from dpbench.analysis.comparisons.comparison import ComparedRow, Comparison, Outcome, compare_sides
from dpbench.analysis.comparisons.matching import Side

INTERIM_ALPHA = 0.015
"""Level of each one-sided test, for data that is analyzed again as it grows."""
OUTCOMES_WORST_FIRST: tuple[Outcome, ...] = ("regressed", "inconclusive", "pass")


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """The verdict on a metric, over all rows."""

    compared: Comparison
    metric: str
    tolerance: float
    regress_level: float
    """Level of the tests for a regression, which all metrics of the check share."""
    change: Change | None
    """The mean change of the cost over all rows; None if no runs can be compared."""
    outcome: Outcome
    """Regressed if a single row is; else that of the mean change."""
    rows: tuple[ComparedRow, ...]
    """A row for each pair, with an outcome of its own."""

    @property
    def repetitions_needed(self) -> int | None:
        """Repetitions that would settle it in 4 of 5 cases, if the change is not close to the
        tolerance; None if out of reach."""
        if self.change is None:
            return None
        return self.change.repetitions_to_settle(1 + self.tolerance, self.regress_level / 2)


def deciding(verdicts: Sequence[Verdict]) -> Verdict:
    """The verdict of a check with several metrics: the first one with the worst outcome, preferably
    one with inconclusive rows."""
    worst = min(verdicts, key=lambda verdict: OUTCOMES_WORST_FIRST.index(verdict.outcome))
    as_bad = [verdict for verdict in verdicts if verdict.outcome == worst.outcome]
    return next((bad for bad in as_bad if any(row.is_open for row in bad.rows)), worst)


def assess(
    baseline: Side, candidate: Side, tolerances: Mapping[str, float], *, force: bool, alpha: float
) -> tuple[Verdict, ...]:
    """Judge the candidate by the tolerance of each metric: {"images_per_second": 0.03}, with
    one-sided tests at the level `alpha`.

    Raises NotComparable as `compare_sides` and `Pair.unit` do.
    """
    compared = compare_sides(baseline, candidate, force=force)
    share = alpha / len(tolerances)
    return tuple(
        judge(compared, metric, tolerance, pass_level=alpha, regress_level=share)
        for metric, tolerance in tolerances.items()
    )


def judge(
    compared: Comparison, name: str, tolerance: float, *, pass_level: float, regress_level: float
) -> Verdict:
    """Judge the mean of all rows of a metric, and each of them. A single row is its own mean."""
    limit = 1 + tolerance
    undecided = compared.rows(name, lambda change: change.p_above(limit))
    mean = mean_change([row.change for row in undecided])
    mean_is_slower = mean is not None and mean.is_above(limit, regress_level)
    mean_outcome = _outcome(compared, mean, limit, pass_level, is_slower=mean_is_slower)
    rows = []
    for row in undecided:
        p = row.p_value_corrected
        is_slower = p is not None and p < regress_level / 2
        outcome = _outcome(compared, row.change, limit, pass_level, is_slower=is_slower)
        rows.append(replace(row, outcome=mean_outcome if len(undecided) == 1 else outcome))
    has_regressed = any(row.outcome == "regressed" for row in rows)
    return Verdict(
        compared=compared,
        metric=name,
        tolerance=tolerance,
        regress_level=regress_level,
        change=mean,
        outcome="regressed" if has_regressed else mean_outcome,
        rows=tuple(rows),
    )


def _outcome(
    compared: Comparison, change: Change | None, limit: float, pass_level: float, *, is_slower: bool
) -> Outcome:
    """The outcome of a change, which a test may have called slower; inconclusive if heavy load on
    the machine may explain it."""
    passes = change is not None and change.is_below(limit, pass_level)
    outcome: Outcome = "regressed" if is_slower else "pass" if passes else "inconclusive"
    is_spoiled = compared.machine_load.spoils_differences and compared.load_may_explain(outcome)
    return "inconclusive" if is_spoiled else outcome


def mean_change(changes: Iterable[Change | None]) -> Change | None:
    """The mean of all changes that can be tested, in the repetitions that all of them have; None if
    there are none.

    These may be too few for pairs where rows failed in some.
    """
    tested = [change for change in changes if change and change.is_tested]
    before = mean_per_repetition([change.baseline for change in tested])
    after = mean_per_repetition([change.candidate for change in tested])
    ran_in_turn = any(change.is_paired for change in tested)
    return change_between(before, after, ran_in_turn=ran_in_turn)

"""What changes mean: the outcome of each row in `compare`, and the verdicts of `check`.

A verdict is regressed, pass or inconclusive, over all rows of a metric at once.

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

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter, methodcaller

from dpbench.analysis.change import ALPHA, Change, change_between, holm, mean_per_repetition
from dpbench.analysis.comparisons.comparison import ComparedRow, Comparison, Outcome, Verdict

INTERIM_ALPHA = 0.015
"""Level of each one-sided test, for data that is analyzed again as it grows."""
OUTCOMES_WORST_FIRST: tuple[Outcome, ...] = ("regressed", "inconclusive", "pass")


def classify(compared: Comparison, *, within: float) -> Comparison:
    """The comparison with the outcome of each row in `compare`. A difference of `within` counts as
    the same: 0.03 is 3 %.

    The outcome is "same" if the whole interval of the change lies between 1 / (1 + within) and
    1 + within; else better or worse if the p-value, corrected for all rows, is below 0.05; else
    it is inconclusive.
    """
    rows = {
        metric: [
            replace(row, outcome=_difference(row, within))
            for row in with_p_values(untested, attrgetter("p_value"))
        ]
        for metric, untested in compared.rows.items()
    }
    return replace(compared, rows=rows)


def _difference(row: ComparedRow, within: float) -> Outcome:
    if row.change is None or row.p_value_corrected is None:
        return "inconclusive"
    low, high = row.change.estimate.ends
    if 1 / (1 + within) <= low and high <= 1 + within:
        return "same"
    if row.p_value_corrected >= ALPHA:
        return "inconclusive"
    if row.change.log_ratio < 0:
        return "faster" if row.metric.is_speed else "better"
    return "slower" if row.metric.is_speed else "worse"


def judge(compared: Comparison, tolerances: Mapping[str, float], *, alpha: float) -> Comparison:
    """The comparison with the verdict of `check` on each metric, and the outcome of each row.

    Args:
        tolerances: by metric: {"images_per_second": 0.03}.
        alpha: level of the one-sided tests.
    """
    rows, verdicts = dict[str, list[ComparedRow]](), list[Verdict]()
    regress_level = alpha / len(tolerances)
    for metric, tolerance in tolerances.items():
        limit = 1 + tolerance
        tested = with_p_values(compared.rows[metric], methodcaller("p_above", limit))
        mean = mean_change(row.change for row in tested)
        is_slower = mean is not None and mean.is_above(limit, regress_level)
        of_mean = _judgment(compared, mean, limit, alpha, is_slower=is_slower)
        judged = rows[metric] = list[ComparedRow]()
        for row in tested:
            p = row.p_value_corrected
            is_slower = p is not None and p < regress_level / 2
            of_row = _judgment(compared, row.change, limit, alpha, is_slower=is_slower)
            # A single row is its own mean.
            judged.append(replace(row, outcome=of_mean if len(tested) == 1 else of_row))
        has_regressed = any(row.outcome == "regressed" for row in judged)
        verdicts.append(
            Verdict(
                metric=metric,
                tolerance=tolerance,
                regress_level=regress_level,
                change=mean,
                outcome="regressed" if has_regressed else of_mean,
            )
        )
    return replace(compared, rows=rows, verdicts=tuple(verdicts))


def _judgment(
    compared: Comparison, change: Change | None, limit: float, pass_level: float, *, is_slower: bool
) -> Outcome:
    """The outcome of a change, which a test may have called slower; inconclusive if heavy load on
    the machine may explain it."""
    passes = change is not None and change.is_below(limit, pass_level)
    outcome: Outcome = "regressed" if is_slower else "pass" if passes else "inconclusive"
    is_spoiled = compared.machine_load.spoils_differences and compared.load_may_explain(outcome)
    return "inconclusive" if is_spoiled else outcome


def with_p_values(
    rows: Sequence[ComparedRow], p_value: Callable[[Change], float]
) -> list[ComparedRow]:
    """The rows of a metric with the p-value of each change that can be tested."""
    p_values = [
        p_value(row.change) if row.change and row.change.is_tested else None for row in rows
    ]
    return [
        replace(row, p_value=p, p_value_corrected=corrected)
        for row, p, corrected in zip(rows, p_values, holm(p_values), strict=True)
    ]


def mean_change(changes: Iterable[Change | None]) -> Change | None:
    """The mean of all changes that can be tested, in the repetitions that all of them have; None if
    there are none.

    These may be too few for pairs where rows failed in some.
    """
    tested = [change for change in changes if change and change.is_tested]
    return change_between(
        mean_per_repetition([change.baseline for change in tested]),
        mean_per_repetition([change.candidate for change in tested]),
        ran_in_turn=any(change.is_paired for change in tested),
    )


def deciding(compared: Comparison) -> Verdict:
    """The verdict of a check with several metrics: the first one with the worst outcome, preferably
    one with inconclusive rows."""
    verdicts = compared.verdicts
    worst = min(verdicts, key=lambda verdict: OUTCOMES_WORST_FIRST.index(verdict.outcome))
    as_bad = [verdict for verdict in verdicts if verdict.outcome == worst.outcome]
    open_ones = (bad for bad in as_bad if any(row.is_open for row in compared.rows[bad.metric]))
    return next(open_ones, worst)

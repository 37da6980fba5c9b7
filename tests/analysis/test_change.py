"""The tests of a change against scipy's own, and corrections worked by hand."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
from scipy import stats

from dpbench.analysis.change import Change, change_between, holm

RNG = np.random.default_rng(7)
BEFORE, AFTER = RNG.normal(size=6), 3 * RNG.normal(size=6)
LIMIT = math.exp(0.3)


def of(before: object, after: object, *, ran_in_turn: bool = False) -> Change:
    """The change between costs with these logarithms."""
    sides = (dict(enumerate(np.exp(logs).tolist())) for logs in (before, after))
    found = change_between(*sides, ran_in_turn=ran_in_turn)
    assert found is not None
    return found


@pytest.mark.parametrize("paired", [False, True])
def test_sweeps_are_compared_by_the_tests_of_scipy(paired: bool) -> None:
    """One sweep by the paired test, two by that of Welch."""
    test = stats.ttest_rel if paired else partial(stats.ttest_ind, equal_var=False)
    found, different = of(BEFORE, AFTER, ran_in_turn=paired), test(AFTER, BEFORE)
    greater = test(AFTER - 0.3, BEFORE, alternative="greater")
    assert found.log_ratio == pytest.approx(AFTER.mean() - BEFORE.mean())
    assert found.p_value == pytest.approx(different.pvalue)
    assert found.degrees_of_freedom == pytest.approx(different.df)
    ends = [*different.confidence_interval(0.95)]
    assert np.log(found.estimate.interval).tolist() == pytest.approx(ends)
    assert found.p_above(LIMIT) == pytest.approx(greater.pvalue)
    assert found.p_below(LIMIT) == pytest.approx(1 - greater.pvalue)


def test_the_sign_test_decides_where_one_repetition_is_wild() -> None:
    changes = np.log([1.04] * 9 + [3.0])
    found = of(np.zeros(10), changes, ran_in_turn=True)
    assert found.p_above(1.03) > 0.05
    assert stats.binomtest(10, 10, alternative="greater").pvalue < 0.025
    assert found.is_above(1.03, 0.05)
    assert not of(np.zeros(10), changes).is_above(1.03, 0.05)  # not the same repetitions


def test_pairs_are_the_repetitions_that_both_sides_have_if_these_are_enough() -> None:
    before = {n: 2.0**n for n in range(6)}
    now = {n: 2.0 ** (n + 1) for n in range(1, 8)}
    found = change_between(before, now, ran_in_turn=True)
    assert found is not None
    assert found.is_paired
    assert (found.estimate.value, found.repetitions) == (pytest.approx(2.0), (5, 5))
    del before[5]
    few = change_between(before, now, ran_in_turn=True)
    assert few is not None
    assert not few.is_paired
    assert few.repetitions == (5, 7)


def test_one_run_has_a_change_but_no_interval() -> None:
    found = of([0.0], [0.5, 0.7])
    assert found.estimate.value == pytest.approx(math.exp(0.6))
    assert found.estimate.interval is None
    assert found.repetitions_to_settle(1.03, 0.025) is None
    assert change_between({}, {0: 1.0}, ran_in_turn=False) is None


def test_runs_that_are_all_equal_have_no_error() -> None:
    same = of([0.1] * 3, [0.1] * 7)
    assert (same.p_above(1.0), same.p_below(1.03)) == (0.5, 0.0)
    assert of([0.1] * 3, [0.2] * 3).p_above(1.03) == 0.0


def test_holm_as_worked_by_hand() -> None:
    # Ascending 0.005 × 4, 0.01 × 3, 0.03 × 2, then 0.04 × 1, lifted to the 0.06 before it.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.01, None, 0.04]) == [0.02, None, 0.04]
    assert holm([0.5, 0.9]) == [1.0, 1.0]


@pytest.mark.parametrize("spread", [0.01, 0.03, 0.05])
def test_the_repetitions_that_are_said_to_settle_it_do_so_in_four_of_five_checks(
    spread: float,
) -> None:
    # Two values with exactly this sample variance, on each side.
    known = [-spread / math.sqrt(2), spread / math.sqrt(2)]
    needed = of(known, known).repetitions_to_settle(1.03, 0.05)
    assert needed is not None
    checks = RNG.normal(scale=spread, size=(1000, 2, needed))
    passed = [of(*one).p_below(1.03) < 0.05 for one in checks]
    assert np.mean(passed) > 0.76
    assert of([-1.0, 1.0], [-1.0, 1.0]).repetitions_to_settle(1.03, 0.05) is None

"""Differences against scipy's own tests, worked corrections, and coverage by simulation."""

from __future__ import annotations

import numpy as np
from numpy.testing import assert_allclose
from scipy import stats

from dpbench.analysis.comparisons.differences import holm, mean_difference, welch

RNG_ROWS = np.random.default_rng(7).normal(size=(2, 30, 6))
NAN = np.nan


def test_welch_is_that_of_scipy() -> None:
    first, second = RNG_ROWS[0], 3 * RNG_ROWS[1, :, :4]
    found = welch(first, second)
    expected = stats.ttest_ind(second, first, axis=1, equal_var=False)
    assert_allclose(found.p_different(), expected.pvalue)
    assert_allclose(found.degrees_of_freedom, expected.df)
    low, high = found.bounds(0.9)
    interval = expected.confidence_interval(0.9)
    assert_allclose(low, interval.low)
    assert_allclose(high, interval.high)
    greater = stats.ttest_ind(second, first + 0.3, axis=1, equal_var=False, alternative="greater")
    assert_allclose(found.p_above(0.3), greater.pvalue)
    assert_allclose(found.p_below(0.3), 1 - greater.pvalue)


def test_a_mean_difference_is_the_t_test_of_scipy() -> None:
    found, expected = mean_difference(RNG_ROWS[0]), stats.ttest_1samp(RNG_ROWS[0], 0, axis=1)
    assert_allclose(found.p_different(), expected.pvalue)
    assert_allclose(found.bounds(0.9), [*expected.confidence_interval(0.9)])


def test_one_run_has_a_difference_but_no_interval() -> None:
    one, many = np.array([1.0]), np.array([1.5, 1.7])
    for found in (welch(one, many), welch(many, one), mean_difference(one)):
        assert np.isfinite(found.center)
        assert np.isnan(found.p_different())
        assert np.isnan(found.bounds(0.95)).all()
    assert np.isnan(welch(np.array([]), many).center)


def test_the_rounding_of_a_mean_is_no_difference() -> None:
    assert welch(np.full((1, 3), 0.1), np.full((1, 7), 0.1)).p_different() == 1


def test_holm_as_worked_by_hand() -> None:
    # Ascending 0.005 × 4, 0.01 × 3, 0.03 × 2, then 0.04 × 1, lifted to the 0.06 before it.
    assert_allclose(holm(np.array([0.01, 0.04, 0.03, 0.005])), [0.03, 0.06, 0.06, 0.02])
    assert_allclose(holm(np.array([0.01, NAN, 0.04])), [0.02, NAN, 0.04])
    assert_allclose(holm(np.array([[0.5, 0.9], [0.01, 0.02]])), [[1, 1], [0.02, 0.02]])

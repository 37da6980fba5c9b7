"""Differences against scipy's own tests, worked corrections, and coverage by simulation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
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


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_never_lowers_a_p_value_nor_changes_their_order(values: list[float]) -> None:
    p_values = np.array(values)
    corrected = holm(p_values)
    assert (corrected >= p_values).all()
    assert (corrected <= 1).all()
    assert (np.diff(corrected[np.argsort(p_values)]) >= 0).all()


@pytest.mark.parametrize("runs", [3, 5, 10])
def test_intervals_cover_what_they_promise(runs: int) -> None:
    rng = np.random.default_rng(runs)
    shared = rng.normal(scale=0.05, size=(8000, runs))
    first = shared + rng.normal(scale=0.01, size=(8000, runs))
    second = shared + rng.normal(loc=0.02, scale=0.02, size=(8000, runs))
    alone = rng.normal(loc=0.02, scale=0.02, size=(8000, runs))
    for found in (mean_difference(second - first), welch(first - shared, alone)):
        low, high = found.bounds(0.95)
        assert 0.93 <= ((low <= 0.02) & (high >= 0.02)).mean() <= 0.975

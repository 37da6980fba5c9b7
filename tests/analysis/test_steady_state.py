"""Steady states against known answers, and how often noise is mistaken for something else."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import rankdata, theilslopes

from dpbench.analysis.steady_state import (
    SteadyState,
    mser5,
    rank_sums,
    steady_states,
    theil_sen,
)
from tests.analysis.builders import correlated

NOISE = 0.02 * correlated(np.random.default_rng(1), 1, 500)[0]


def judged(steps: NDArray[np.float64], warmup_steps: int = 10) -> SteadyState:
    (state,) = steady_states(np.array([steps]), warmup_steps)
    return state


def step_down() -> NDArray[np.float64]:
    """25 steps of 2 s, then 475 of 0.99 s and 1.01 s in turn."""
    return np.concatenate([np.full(25, 2.0), np.tile([0.99, 1.01], 238)[:475]])


def test_a_step_down_is_cut_exactly() -> None:
    cuts, at_half = mser5(np.array([step_down()]))
    assert (cuts.tolist(), at_half.tolist()) == ([25], [False])


def test_a_step_down_is_still_warming_up() -> None:
    state = judged(step_down())
    assert (state.verdict, state.cut_steps) == ("warming up", 25)
    # All: (25 x 2 + 238 x 0.99 + 237 x 1.01) / 500 = 1.04998; the rest: 474.99 / 475.
    assert state.change == pytest.approx(1 - (474.99 / 475) / (524.99 / 500))
    assert state.drift == pytest.approx(0.0, abs=1e-3)


def test_steady_noise_is_steady() -> None:
    assert judged(1 + NOISE).verdict == "steady"


def test_equal_steps_are_steady() -> None:
    state = judged(np.full(50, 0.3))
    assert (state.verdict, state.cut_steps) == ("steady", 0)
    assert (state.change, state.drift) == pytest.approx((0.0, 0.0))


def test_a_slow_exponential_has_no_steady_state() -> None:
    assert judged(1 + np.exp(-np.arange(500) / 200) + NOISE).verdict == "no steady state"


@pytest.mark.parametrize("drift", [0.2, -0.06])
def test_a_linear_drift_is_measured(drift: float) -> None:
    state = judged(1 + drift * (np.arange(500) / 500 - 0.5) + NOISE / 10)
    assert state.verdict in ("drifting", "no steady state")
    # MSER-5 leaves out the start of a drift; the slope of the rest is the same.
    kept = (500 - state.cut_steps) / 500
    assert state.drift == pytest.approx(drift * kept, rel=0.05)


def test_a_drift_that_changes_less_than_a_hundredth_is_steady() -> None:
    assert judged(1 + 0.008 * np.arange(500) / 500 + NOISE / 10).verdict == "steady"


def test_a_transient_that_changes_less_than_a_hundredth_is_steady() -> None:
    steps = 1 + NOISE / 10
    steps[:25] += 0.1  # 25 x 0.1 / 500 = 0.5 % of the mean
    state = judged(steps)
    assert (state.verdict, state.cut_steps) == ("steady", 25)


def test_single_slow_steps_are_no_warmup() -> None:
    steps = 1 + NOISE
    steps[[40, 90]] = 9.0  # 3.2 % of the mean
    assert judged(steps).verdict == "steady"


def test_warmup_steps_that_are_missing_are_taken_from_the_window() -> None:
    steps = 1 + NOISE[:100]
    assert judged(steps, warmup_steps=10).cut_steps == 0
    assert judged(steps, warmup_steps=3).cut_steps == 7


@pytest.mark.parametrize(("length", "verdict"), [(39, "too few steps"), (40, "steady")])
def test_few_steps_cannot_tell(length: int, verdict: str) -> None:
    assert judged(1 + NOISE[:length]).verdict == verdict


def test_windows_are_judged_as_if_alone() -> None:
    windows = np.array([step_down(), 1 + NOISE, 1 + np.exp(-np.arange(500) / 200)])
    assert steady_states(windows, 10) == [judged(window) for window in windows]


@pytest.mark.parametrize("length", [10, 20])
def test_slopes_are_those_of_scipy(length: int) -> None:
    values = correlated(np.random.default_rng(length), 30, length)
    expected = [theilslopes(row, alpha=0.99) for row in values]
    slope, low, high = theil_sen(values, 0.99)
    assert slope == pytest.approx([result.slope for result in expected])
    assert low == pytest.approx([result.low_slope for result in expected])
    assert high == pytest.approx([result.high_slope for result in expected])


@pytest.mark.parametrize("cut", [0, 1, 12, 30])
def test_rank_sums_are_those_of_scipy_ties_included(cut: int) -> None:
    values = np.random.default_rng(cut).integers(0, 12, (20, 30)).astype(float)
    expected = rankdata(values, axis=1)[:, :cut].sum(axis=1)
    assert rank_sums(values, cut).tolist() == expected.tolist()


@pytest.mark.parametrize("length", [40, 100, 250])
@pytest.mark.parametrize("spread", [0.02, 0.1])
@pytest.mark.parametrize(("phi", "most"), [(0.0, 0.02), (0.5, 0.05)])
def test_steady_noise_is_rarely_flagged(
    length: int, spread: float, phi: float, most: float
) -> None:
    steps = 1 + spread * correlated(np.random.default_rng(length), 2000, length, phi)
    flagged = sum(state.verdict != "steady" for state in steady_states(steps, 10))
    assert flagged / 2000 <= most


def test_an_exponential_start_is_found() -> None:
    """50 % slower at first, gone after some 10 steps, under 2 % noise."""
    noise = 0.02 * correlated(np.random.default_rng(3), 500, 250)
    states = steady_states(1 + 0.5 * np.exp(-np.arange(250) / 10) + noise, 10)
    assert sum(state.verdict == "warming up" for state in states) >= 475
    assert 25 <= np.median([state.cut_steps for state in states]) <= 45

"""Steady states against known answers, and how often noise is mistaken for something else."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import rankdata, theilslopes

from dpbench.analysis.steady_state import (
    SteadyState,
    late_steps,
    mser5,
    noise_correlation,
    of_batches,
    ranks,
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


def test_ranks_are_those_of_scipy_ties_included() -> None:
    values = np.random.default_rng(0).integers(0, 12, (20, 30)).astype(float)
    assert ranks(values).tolist() == rankdata(values, axis=1).tolist()


@pytest.mark.parametrize("length", [40, 100, 250])
@pytest.mark.parametrize("spread", [0.02, 0.1])
@pytest.mark.parametrize(("phi", "most"), [(0.0, 0.003), (0.3, 0.005), (0.6, 0.012)])
def test_steady_noise_is_rarely_flagged(
    length: int, spread: float, phi: float, most: float
) -> None:
    """Nominally 0.1 %; of 3,000 windows of 0.1 %, 9 or more are flagged in 4 of 1,000 cases."""
    steps = 1 + spread * correlated(np.random.default_rng(length), 3000, length, phi)
    flagged = sum(state.verdict != "steady" for state in steady_states(steps, 10))
    assert flagged / 3000 <= most


@pytest.mark.parametrize(("length", "least"), [(100, 0.98), (250, 0.99)])
@pytest.mark.parametrize("change", [0.05, -0.05])
def test_a_change_in_the_last_fifth_is_found(length: int, least: float, change: float) -> None:
    """1 % of the mean step, under 2 % of noise."""
    steps = 1 + 0.02 * correlated(np.random.default_rng(length), 1000, length)
    steps[:, length * 4 // 5 :] *= 1 + change
    states = steady_states(steps, 10)
    found = [state for state in states if state.verdict == "changing at the end"]
    assert len(found) >= least * len(states)
    assert np.median([state.late_steps for state in found]) == length // 5
    # 0.2 × 0.05 ÷ 1.01, and 0.2 × 0.05 ÷ 0.99.
    assert np.median([state.late_change for state in found]) == pytest.approx(
        0.2 * change / (1 + 0.2 * change), rel=0.1
    )


def test_a_late_change_is_found_among_correlated_steps() -> None:
    steps = 1 + 0.02 * correlated(np.random.default_rng(1), 1000, 250, 0.5)
    steps[:, 200:] *= 1.05
    states = steady_states(steps, 10)
    assert sum(state.verdict == "changing at the end" for state in states) >= 950


def test_the_last_steps_are_those_that_differ_most() -> None:
    steps = np.ones((1, 60)) + np.arange(60) % 7 / 1000
    steps[0, 45:] += 1
    assert late_steps(ranks(steps)).tolist() == [15]


def test_a_few_slow_steps_at_the_end_are_outliers() -> None:
    steps = 1 + NOISE
    steps[-2:] = 4.0  # 1.2 % of the mean
    assert judged(steps).verdict == "steady"


@pytest.mark.parametrize("phi", [0.0, 0.3, 0.6])
def test_the_correlation_of_noise_is_estimated_beside_what_is_looked_for(phi: float) -> None:
    steps = 1 + 0.02 * correlated(np.random.default_rng(7), 400, 500, phi)
    steps[:, :100] += 0.2
    steps[:, 400:] += 0.1
    found = noise_correlation(ranks(steps), 100, 100)
    assert np.mean(found) == pytest.approx(phi, abs=0.04)


def test_batches_of_correlated_steps_are_less_correlated() -> None:
    """Of an autoregression with r: batches of one step have r itself; of 12, at 0.5, 0.0624."""
    assert of_batches(np.array([0.5]), 1) == pytest.approx([0.5])
    walks = correlated(np.random.default_rng(2), 4000, 24, 0.5)
    means = walks.reshape(4000, 2, 12).mean(axis=2)
    expected = np.corrcoef(means.T)[0, 1]
    assert of_batches(np.array([0.5]), 12) == pytest.approx([expected], abs=0.03)


def test_an_exponential_start_is_found() -> None:
    """50 % slower at first, gone after some 10 steps, under 2 % noise."""
    noise = 0.02 * correlated(np.random.default_rng(3), 500, 250)
    states = steady_states(1 + 0.5 * np.exp(-np.arange(250) / 10) + noise, 10)
    assert sum(state.verdict == "warming up" for state in states) >= 475
    assert 25 <= np.median([state.cut_steps for state in states]) <= 45

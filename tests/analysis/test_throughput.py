"""Statistics of single steps by hand, and the detection of slow first steps by simulation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dpbench.analysis.estimate import Floats
from dpbench.analysis.throughput import after_first_segment, outlier_limit, warm_up
from tests.analysis.builders import window


def test_outliers_are_ten_standard_deviations_above_the_median() -> None:
    # Median 1.0, median absolute deviation 0.1: the limit is 1 + 14.826 x 0.1 = 2.4826.
    assert outlier_limit(np.array([0.9, 1.0, 1.1] * 16)) == pytest.approx(2.4826)
    # What the clock cannot distinguish is no outlier, nor is anything among nine steps.
    assert outlier_limit(np.array([0.1] * 10)) > 0.1 + 1e-10
    assert outlier_limit(np.array([0.1] * 8 + [9.0])) == np.inf


def sweeps(noise: str) -> Floats:
    """300 configurations of 4 windows with 50 steps that take 1 s and vary by 5 %."""
    rng = np.random.default_rng(3)
    found = rng.normal(size=(300, 4, 50))
    if noise == "correlated":
        for step in range(1, 50):
            found[..., step] = 0.6 * found[..., step - 1] + 0.8 * found[..., step]
    found *= 0.05
    if noise == "spikes":
        found += 3.0 * (rng.random(found.shape) < 0.03)
    return np.asarray(np.exp(found))


NOISES = ("white", "correlated", "spikes")


def flagged(windows: Floats) -> float:
    return float(np.mean([warm_up([*group]) is not None for group in windows]))


@pytest.mark.parametrize("noise", NOISES)
def test_steady_windows_are_rarely_flagged(noise: str) -> None:
    assert flagged(sweeps(noise)) <= 0.05


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize(
    ("factor", "first", "found"), [(10, 5, 1.0), (1.5, 5, 0.9), (1.2, 10, 0.9)]
)
def test_slow_first_steps_are_found(noise: str, factor: float, first: int, found: float) -> None:
    windows = sweeps(noise)
    windows[..., :first] *= factor
    assert flagged(windows) >= found


def test_a_warm_up_has_its_length_and_its_change() -> None:
    slow, fast = np.array([3.0] * 5 + [1.0] * 45), np.array([0.5] * 10 + [1.0] * 40)
    found = warm_up([slow] * 3)
    assert found is not None
    assert (found.steps, found.change) == (5, pytest.approx(2.0))
    for windows in ([fast] * 3, [slow[:9]] * 4, [slow]):
        assert warm_up(windows) is None


def test_slow_first_steps_that_cost_less_than_a_hundredth_of_the_window_are_none() -> None:
    """82 of 410 steps that take 3 % longer cost 0.6 %; 7 % longer, 1.4 %."""
    for longer, expected in ((1.03, None), (1.07, 82)):
        found = warm_up([np.array([longer] * 82 + [1.0] * 328)] * 3)
        assert (found and found.steps) == expected


def test_a_window_that_took_no_time_stays_whole() -> None:
    none = replace(window((0.0,) * 4, 4), segment_steps=(2, 2))
    assert after_first_segment(none) == none

"""Losses: their curve, and their slope against lines, by hand, and by simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dpbench.analysis.estimate import Estimate, geometric_mean
from dpbench.analysis.losses import loss_curve, loss_slope, loss_slope_per_second
from tests.analysis.builders import loss_run, rank, record, run, trial, window

SPEED = Estimate(
    value=320.0, low=288.0, high=352.0, unit="samples/s", sample_size=3, basis="repetitions"
)


@pytest.mark.parametrize("steps", [2, 11, 12, 20, 99, 100, 399])
@pytest.mark.parametrize("fall", [-0.1, 0.0, 0.02])
def test_a_straight_line_has_its_own_slope(steps: int, fall: float) -> None:
    found = loss_slope([2.0 - fall * step for step in range(steps)])
    assert found.value == pytest.approx(fall, abs=1e-12)
    assert (found.basis == "step batches") is (steps >= 12)
    assert (found.interval is None) is (steps < 12)


def test_per_second_is_per_step_times_steps_per_second() -> None:
    """32 samples a step at 320 samples/s are 10 steps/s."""
    line = loss_run([2.0 - 0.01 * step for step in range(100)])
    found = loss_slope_per_second([line], SPEED)
    assert found is not None
    assert found.value == pytest.approx(0.1)
    assert found.interval == pytest.approx((0.09, 0.11))
    assert found.unit == "per s"


def test_the_loss_per_second_covers_its_truth() -> None:
    """Four repetitions of one seed, whose times vary by 3 %; 400 steps with noisy batches."""
    noise, spread = 0.3, 0.03
    rng = np.random.default_rng(5)
    covered = 0
    for _ in range(400):
        losses = (3.0 - 0.001 * np.arange(400) + noise * rng.normal(size=400)).tolist()
        speeds = (320 * np.exp(spread * rng.normal(size=4))).tolist()
        repetitions = [
            loss_run(losses, step_seconds=32 / speed, repetition=number)
            for number, speed in enumerate(speeds)
        ]
        found = loss_slope_per_second(repetitions, geometric_mean(speeds, unit="samples/s"))
        assert found is not None
        covered += found.ends[0] <= 0.01 <= found.ends[1]
    assert 0.93 <= covered / 400 <= 0.98


def test_few_steps_are_blocks_of_one_step_and_a_mean_over_five() -> None:
    curve = loss_curve(loss_run([6.0, 4.0, 5.0, 1.0, 4.0, 1.0]))
    assert curve is not None
    # 6; 10/2; 15/3; 16/4; 20/5; the last five: 15/5.
    assert curve[1] == pytest.approx([6.0, 5.0, 5.0, 4.0, 4.0, 3.0])
    assert curve[0] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.6])


def test_many_steps_are_a_hundred_blocks_in_which_a_bad_step_does_nothing() -> None:
    losses = [2.0] * 500
    losses[250] = 1e6
    curve = loss_curve(loss_run(losses))
    assert curve is not None
    assert curve[1].tolist() == [2.0] * 100
    assert curve[0][-1] == pytest.approx(50.0)


def test_seconds_are_those_of_the_slowest_rank() -> None:
    fast = rank(0, window([0.1, 0.1], 60, [2.0, 1.0]))
    slow = rank(1, window([0.3, 0.1], 40, [2.0, 1.0]))
    curve = loss_curve(record(trial(group_size=2), [fast, slow]))
    assert curve is not None
    assert curve[0] == pytest.approx([0.3, 0.4])


def test_losses_that_are_missing_or_not_finite_are_left_out() -> None:
    diverged = run(trial(), 100.0, losses=(2.0, 1.0, math.nan, math.inf))
    missing = record(trial(), [rank(0, window([0.1], 32))])
    for one in (diverged, missing):
        assert loss_slope_per_second([one], SPEED) is None
        assert loss_curve(one) is None

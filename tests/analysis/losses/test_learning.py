"""Slopes of losses: against lines, by hand, and their coverage by simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dpbench.analysis.estimate import Estimate, LogMean
from dpbench.analysis.losses.learning import learning, loss_slope
from tests.analysis.builders import loss_run

SPEED = Estimate(
    value=320.0, low=288.0, high=352.0, unit="samples/s", sample_size=3, basis="repetitions"
)


def slope_of(run: list[float]) -> Estimate:
    found = loss_slope([run])
    assert found is not None
    return found


@pytest.mark.parametrize("steps", [2, 19, 20, 99, 100, 399])
@pytest.mark.parametrize("fall", [-0.1, 0.0, 0.02])
def test_a_straight_line_has_its_own_slope(steps: int, fall: float) -> None:
    found = slope_of([2.0 - fall * step for step in range(steps)])
    assert found.value == pytest.approx(fall, abs=1e-12)
    assert (found.basis == "step batches") is (steps >= 20)
    assert (found.interval is None) is (steps < 20)


def test_repetitions_that_differ_have_the_interval_of_their_spread() -> None:
    runs = [[2.0 - fall * step for step in range(30)] for fall in (0.01, 0.02, 0.03)]
    found = loss_slope(runs)
    assert found is not None
    assert (found.value, found.basis) == (pytest.approx(0.02), "repetitions")
    # t = 4.303 at 2 degrees of freedom, times 0.01 ÷ √3.
    assert found.half_width == pytest.approx(4.303 * 0.01 / math.sqrt(3), rel=1e-3)


def test_per_second_is_per_step_times_steps_per_second() -> None:
    """32 samples a step at 320 samples/s are 10 steps/s."""
    found, notes = learning([loss_run([2.0 - 0.01 * step for step in range(100)])], SPEED)
    assert found["loss_slope_per_second"].value == pytest.approx(0.1)
    assert found["loss_slope_per_second"].interval == pytest.approx((0.09, 0.11))
    assert (found["loss_slope_per_second"].unit, notes) == ("per s", [])


@pytest.mark.parametrize(("noise", "spread"), [(0.1, 0.01), (0.1, 0.03), (0.3, 0.03)])
def test_the_loss_per_second_covers_its_truth(noise: float, spread: float) -> None:
    """Four repetitions of one seed, whose times vary by `spread`; 400 steps with noisy batches."""
    rng = np.random.default_rng(5)
    covered = 0
    for _ in range(400):
        losses = (3.0 - 0.001 * np.arange(400) + noise * rng.normal(size=400)).tolist()
        speeds = (320 * np.exp(spread * rng.normal(size=4))).tolist()
        repetitions = [
            loss_run(losses, step_seconds=32 / speed, repetition=number)
            for number, speed in enumerate(speeds)
        ]
        speed = LogMean.of_runs(speeds).estimate("samples/s")
        covered += learning(repetitions, speed)[0]["loss_slope_per_second"].contains(0.01)
    assert 0.93 <= covered / 400 <= 0.98


def test_the_delta_per_second_has_no_interval_however_often_it_ran() -> None:
    runs = [
        loss_run([2.0, 1.5, 1.0], step_seconds=seconds, repetition=number)
        for number, seconds in enumerate((0.1, 0.2))
    ]
    found, _ = learning(runs, SPEED)
    delta = found["loss_delta_per_second"]
    assert (delta.value, delta.interval) == (pytest.approx((1 / 0.3 + 1 / 0.6) / 2), None)
    assert (delta.unit, delta.basis) == ("per s", "single value")

"""When a target is reached for good, and what is said when it is not."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dpbench.analysis.losses.loss_curve import LossCurve
from dpbench.analysis.losses.time_to_loss import first_at_loss, time_to_loss
from tests.analysis.builders import loss_run


def curve(*losses: float) -> LossCurve:
    """Two seconds and ten samples a block."""
    blocks = np.arange(1, len(losses) + 1, dtype=np.float64)
    return LossCurve(
        losses=np.array(losses), steps=blocks, seconds=2.0 * blocks, samples=10.0 * blocks
    )


def test_the_time_is_interpolated_inside_the_block() -> None:
    # From 3 at 2 s to 1 at 4 s: 1.5 after three quarters.
    assert first_at_loss(curve(3.0, 1.0, 1.0, 1.0), 1.5) == pytest.approx((3.5, 17.5))


def test_a_dip_of_two_blocks_does_not_count() -> None:
    assert first_at_loss(curve(3.0, 1.0, 1.0, 3.0, 1.0, 1.0, 1.0), 1.0) == (10.0, 50.0)


@pytest.mark.parametrize("losses", [(3.0, 3.0, 3.0), (3.0, 1.0, 1.0), (1.0, 1.0)])
def test_a_target_that_is_not_held_for_three_blocks_is_not_reached(losses: tuple) -> None:
    assert first_at_loss(curve(*losses), 1.0) is None


def test_a_target_that_holds_from_the_start_is_reached_by_the_end_of_the_first_block() -> None:
    assert first_at_loss(curve(1.0, 1.0, 1.0), 2.0) == (2.0, 10.0)


FALLING = [3.0 - 0.1 * step for step in range(20)]


def test_seconds_have_an_interval_over_repetitions_and_equal_samples_have_none() -> None:
    runs = [loss_run(FALLING, step_seconds=seconds) for seconds in (0.1, 0.2, 0.4)]
    found = time_to_loss(runs, 2.0)
    assert found is not None
    assert found.seconds is not None
    assert found.samples is not None
    # The mean of five is late by two steps: it is at 2.0 after step 12 (of 0, 1, ...).
    assert found.seconds.value == pytest.approx(13 * 0.2)
    assert (found.seconds.unit, found.seconds.basis) == ("s", "repetitions")
    assert (found.samples.value, found.samples.interval) == (pytest.approx(13 * 32), None)
    assert found.samples.unit == "images"
    assert (found.censored, found.repetitions) == (0, 3)


def test_one_run_that_does_not_arrive_leaves_no_mean() -> None:
    runs = [loss_run(FALLING), loss_run([3.0] * 30), loss_run([3.0] * 20)]
    found = time_to_loss(runs, 2.0)
    assert found is not None
    assert (found.seconds, found.samples) == (None, None)
    assert (found.censored, found.repetitions) == (2, 3)
    assert found.longest_seconds == pytest.approx(3.0)


def test_runs_without_losses_have_no_time() -> None:
    assert time_to_loss([loss_run([math.nan] * 5)], 2.0) is None


def test_a_diverged_repetition_never_reaches_it() -> None:
    """Leaving it out would flatter the configuration."""
    runs = [loss_run([2.0, *[1.0] * 19]) for _ in range(2)]
    found = time_to_loss(runs, 1.5, diverged=1)
    assert found is not None
    assert (found.censored, found.repetitions, found.seconds) == (1, 3, None)
    infinite = loss_run([2.0, *[1.0] * 18, math.inf])
    found = time_to_loss([*runs, infinite], 1.5)
    assert found is not None
    assert (found.censored, found.repetitions, found.seconds) == (1, 3, None)

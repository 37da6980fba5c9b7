"""Blocks, smoothing, and what had been consumed by then."""

from __future__ import annotations

import math

import pytest

from dpbench.analysis.losses.loss_curve import are_one_sample, loss_curve
from tests.analysis.builders import loss_run, rank, record, trial, window


def test_few_steps_are_blocks_of_one_step_and_a_mean_over_five() -> None:
    curve = loss_curve(loss_run([6.0, 4.0, 5.0, 1.0, 4.0, 1.0]))
    assert curve is not None
    # 6; 10/2; 15/3; 16/4; 20/5; the last five: 15/5.
    assert curve.losses == pytest.approx([6.0, 5.0, 5.0, 4.0, 4.0, 3.0])
    assert curve.seconds == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.6])


def test_many_steps_are_a_hundred_blocks_in_which_a_bad_step_does_nothing() -> None:
    losses = [2.0] * 500
    losses[250] = 1e6
    curve = loss_curve(loss_run(losses))
    assert curve is not None
    assert curve.losses.tolist() == [2.0] * 100
    assert curve.seconds[-1] == pytest.approx(50.0)


def test_seconds_are_those_of_the_slowest_rank() -> None:
    fast = rank(0, window([0.1, 0.1], 60, [2.0, 1.0]))
    slow = rank(1, window([0.3, 0.1], 40, [2.0, 1.0]))
    curve = loss_curve(record(trial(group_size=2), [fast, slow]))
    assert curve is not None
    assert curve.seconds == pytest.approx([0.3, 0.4])


def test_losses_that_are_missing_or_not_finite_have_no_curve() -> None:
    assert loss_curve(loss_run([1.0, math.nan])) is None
    without = rank(0, window([0.1], 32))
    assert loss_curve(record(trial(), [without])) is None


LOSSES = [2.0, 1.5, 1.2]
OTHER = [2.0, 1.65, 1.2]


def test_repetitions_are_one_sample_if_no_step_differs_by_more_than_rounding() -> None:
    assert are_one_sample([LOSSES, [loss * (1 + 1e-6) for loss in LOSSES]])
    assert not are_one_sample([LOSSES, OTHER])

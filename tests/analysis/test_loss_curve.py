"""Blocks, smoothing, and what had been consumed by then."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from dpbench.analysis.loss_curve import block_medians, loss_curve
from dpbench.errors import StoreError
from tests.analysis.builders import rank, record, trial, window
from tests.analysis.loss_records import loss_run


def test_a_block_has_its_median_and_an_incomplete_one_is_left_out() -> None:
    assert block_medians([1.0, 9.0, 2.0, 3.0, 3.0, 3.0, 7.0], 3).tolist() == [2.0, 3.0]


def test_few_steps_are_blocks_of_one_step_and_a_mean_over_five() -> None:
    curve = loss_curve(loss_run([6.0, 4.0, 5.0, 1.0, 4.0, 1.0]))
    assert curve is not None
    # 6; 10/2; 15/3; 16/4; 20/5; the last five: 15/5.
    assert curve.losses == pytest.approx([6.0, 5.0, 5.0, 4.0, 4.0, 3.0])
    assert curve.samples == pytest.approx([32, 64, 96, 128, 160, 192])
    assert curve.seconds == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
    assert curve.steps.tolist() == [1, 2, 3, 4, 5, 6]


def test_many_steps_are_a_hundred_blocks_in_which_a_bad_step_does_nothing() -> None:
    losses = [2.0] * 500
    losses[250] = 1e6
    curve = loss_curve(loss_run(losses))
    assert curve is not None
    assert curve.losses.tolist() == [2.0] * 100
    assert curve.seconds[-1] == pytest.approx(50.0)
    assert curve.samples[0] == 5 * 32
    assert curve.steps.tolist()[:2] == [5, 10]


def test_seconds_are_those_of_the_slowest_rank_and_samples_those_of_all() -> None:
    fast = rank(0, window([0.1, 0.1], 60, [2.0, 1.0]))
    slow = rank(1, window([0.3, 0.1], 40, [2.0, 1.0]))
    curve = loss_curve(record(trial(group_size=2), [fast, slow]))
    assert curve is not None
    assert curve.seconds == pytest.approx([0.3, 0.4])
    assert curve.samples == pytest.approx([50.0, 100.0])


def test_losses_that_are_missing_or_not_finite_have_no_curve() -> None:
    assert loss_curve(loss_run([1.0, math.nan])) is None
    without = rank(0, window([0.1], 32))
    assert loss_curve(record(trial(), [without])) is None


def test_a_loss_is_needed_for_every_step() -> None:
    short = loss_run([1.0, 1.0])
    timed = replace(short.ranks[0].timed, losses=(1.0,))
    with pytest.raises(StoreError, match="got 1 losses for 2 timed steps"):
        loss_curve(replace(short, ranks=(replace(short.ranks[0], timed=timed),)))

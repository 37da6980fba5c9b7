"""Bands worked by hand."""

from __future__ import annotations

import math

import pytest

from dpbench.analysis.estimate import LogMean
from dpbench.analysis.laws.band import published_misspecification
from dpbench.analysis.projection.spread import (
    EXACT,
    Spread,
    ends_of_deviation,
    ends_of_mean,
    part_band,
    step_band,
)


def test_the_ends_of_a_deviation_are_those_of_chi_square() -> None:
    low, high = ends_of_deviation(10)
    assert low == pytest.approx(math.sqrt(10 / 18.307), rel=1e-4)
    assert high == pytest.approx(math.sqrt(10 / 3.940), rel=1e-4)


def test_the_ends_of_a_mean_are_those_of_student_at_90_percent() -> None:
    mean = LogMean(
        value=5.0, squared_error=0.01**2, degrees_of_freedom=4, sample_size=5, basis="repetitions"
    )
    assert ends_of_mean(mean) == pytest.approx((math.exp(-0.021318), math.exp(0.021318)), rel=1e-5)
    assert ends_of_mean(LogMean.of_single(3.0)) == EXACT


def test_every_input_is_moved_alone() -> None:
    plain, *cases = Spread(compute=(0.9, 1.1), noise=(0.5, 2.0)).cases()
    assert (plain.compute, plain.communication, plain.noise) == (1, 1, 1)
    assert [case.compute for case in cases] == [0.9, 1.1, 1, 1, 1, 1, 1, 1]
    assert [case.noise for case in cases] == [1, 1, 1, 1, 1, 1, 0.5, 2.0]


def test_swings_add_up_as_squares_on_logarithms() -> None:
    swings = [0.03, -0.03, 0.04, -0.04]
    found = step_band([2.0, *(2 * math.exp(s) for s in swings)], 0.0, sample_size=30)
    assert found.interval == pytest.approx((2 * math.exp(-0.05), 2 * math.exp(0.05)))
    assert (found.confidence, found.basis, found.sample_size) == (0.9, "model", 30)


def test_beyond_the_data_the_error_of_the_model_makes_steps_slower() -> None:
    found, law = step_band([1.0], 3.0, sample_size=1), published_misspecification().beyond
    ends = [math.exp(end * math.sqrt(3)) for end in (law.low, law.high)]
    assert found.interval == pytest.approx(tuple(ends))
    assert law.high > -law.low


def test_the_error_that_the_simulation_was_seen_to_have_widens_both_sides() -> None:
    found = step_band([2.0, 2 * math.exp(0.03)], 0.0, sample_size=3, model_error=0.04)
    assert found.interval == pytest.approx((2 * math.exp(-0.04), 2 * math.exp(0.05)))


def test_a_part_of_a_step_does_not_get_below_zero_by_its_band() -> None:
    assert part_band([0.1, -0.2, 0.3], sample_size=1).interval == pytest.approx((0.0, 0.3))


def test_parts_of_a_step_may_be_zero() -> None:
    found = part_band([0.0, 0.0, 0.3, 0.4, 0.0], sample_size=1)
    assert (found.value, found.low, found.high) == (0, 0, pytest.approx(0.5))

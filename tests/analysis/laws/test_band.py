"""Bands against the survey's numbers, and their calibration."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dpbench.analysis.laws.band import (
    FEWEST_HOLD_OUTS,
    LawError,
    band,
    calibrated,
    envelope,
    published_misspecification,
)


@pytest.mark.parametrize(
    ("group_size", "low", "high"),
    [(16, 0.98, 1.14), (64, 0.96, 1.26), (1000, 0.95, 1.42), (10_000, 0.93, 1.53)],
)
def test_the_law_error_beyond_eight_replicas(group_size: int, low: float, high: float) -> None:
    """The survey's numbers, of 40 hold-outs."""
    survey = LawError(low=-0.021, high=0.133, hold_outs=40, source="survey")
    reach = survey.reach(math.log2(group_size / 8))
    assert [round(math.exp(end), 2) for end in reach] == [low, high]


def test_on_the_data_a_law_has_no_error_of_its_own() -> None:
    assert published_misspecification().beyond.reach(0.0) == (0.0, 0.0)


def test_both_parts_add_up_as_independent_errors() -> None:
    draws = np.exp(np.linspace(-0.03, 0.03, 1001))
    low, high = band(1.0, draws[None], (-0.036, 0.04))
    noise = 0.9 * 0.03
    assert math.log(low) == pytest.approx(-math.hypot(noise, 0.036))
    assert math.log(high) == pytest.approx(math.hypot(noise, 0.04))


def test_a_band_holds_its_prediction_even_if_all_refits_are_faster() -> None:
    low, high = band(1.0, np.full((1, 10), 0.9), (0.0, 0.0))
    assert low == pytest.approx(0.9)
    assert high == 1.0


def test_alternatives_are_spanned_whole() -> None:
    """Two laws without noise: no quantile between them, but both."""
    assert envelope(np.array([[0.8], [1.2]])) == (0.8, 1.2)
    low, high = envelope(np.stack([np.linspace(0, 1, 101), np.linspace(2, 3, 101)]))
    assert (low, high) == pytest.approx((0.05, 2.95))


def test_calibration_takes_order_statistics() -> None:
    error = calibrated([place / 100 for place in range(-5, 14)], source="x")
    assert (error.low, error.high, error.hold_outs) == (-0.05, 0.13, 19)


def test_a_calibrated_band_covers_the_next_residual() -> None:
    """Nominal 90 %; 2,000 calibrations on 39 skewed residuals."""
    generator = np.random.default_rng(3)
    samples = generator.gumbel(0.0, 0.05, (2000, 40))
    covered = 0
    for sample in samples:
        error = calibrated(sample[:-1].tolist(), source="x")
        covered += error.low <= sample[-1] <= error.high
    assert 0.88 <= covered / 2000 <= 0.94


def test_few_hold_outs_calibrate_nothing() -> None:
    with pytest.raises(ValueError, match="18 hold-outs"):
        calibrated([0.0] * (FEWEST_HOLD_OUTS - 1), source="x")

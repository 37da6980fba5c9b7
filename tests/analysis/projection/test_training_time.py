"""Time to a loss by the noise scale, against numbers worked by hand."""

from __future__ import annotations

import pytest

from dpbench.analysis.estimate import Estimate
from dpbench.analysis.goodput import statistical_efficiency
from dpbench.analysis.projection.economics import given
from dpbench.analysis.projection.training_time import TrainingToLoss

NOISE_SCALE = 8192.0
BATCH = 256


def exact(value: float, unit: str) -> Estimate:
    found = given(value, unit)
    assert found is not None
    return found


def training(noise_scale: Estimate | None = None) -> TrainingToLoss:
    """One replica of 256 took 33,000 steps: with phi = 8,192, S_min = 33,000 ÷ 33 = 1,000."""
    return TrainingToLoss(
        target_loss=0.5,
        samples=exact(33_000.0 * BATCH, "images"),
        batch_size=BATCH,
        noise_scale=noise_scale or exact(NOISE_SCALE, "images"),
    )


def test_steps_follow_the_noise_scale() -> None:
    assert training().fewest_steps.value == pytest.approx(1000)
    steps = [training().steps(n * BATCH).value for n in (1, 8, 32, 256)]
    assert steps == pytest.approx([33_000, 5000, 2000, 1125])


def test_time_to_loss_is_steps_times_their_length_and_never_below_the_floor() -> None:
    step = Estimate(value=0.1, low=0.09, high=0.12, unit="s", sample_size=3, basis="model")
    assert training().seconds(step, 32 * BATCH).value == pytest.approx(200)
    assert training().seconds(step, 32 * BATCH).interval == pytest.approx((180, 240))
    assert training().floor_seconds(step).value == pytest.approx(100)
    assert training().seconds(step, 10**12).value == pytest.approx(100)


def test_a_sample_of_a_large_batch_is_worth_less() -> None:
    phi = exact(NOISE_SCALE, "images")
    worth = [
        statistical_efficiency(phi, n * BATCH, base_batch_size=BATCH).value for n in (1, 8, 32, 256)
    ]
    assert worth == pytest.approx([1, 0.825, 0.516, 0.115], abs=0.0005)


def test_an_unsure_noise_scale_makes_the_steps_unsure() -> None:
    phi = Estimate(
        value=8192.0, low=4096.0, high=16384.0, unit="images", sample_size=8, basis="step batches"
    )
    found = training(phi).steps(256 * BATCH)
    # 33,000 · 256 (1 + phi / 65,536) ÷ (256 + phi) at phi = 16,384 and 4,096.
    assert found.interval == pytest.approx((634.6, 2062.5), abs=0.1)
    assert training(phi).steps(BATCH).interval == pytest.approx((33_000, 33_000))

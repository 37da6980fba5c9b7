"""Where power, noise scale and training time come from, and what is said when they are missing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dpbench.analysis.configuration import ConfigurationSummary
from dpbench.analysis.estimate import Estimate, inverse
from dpbench.analysis.losses.loss_curve import TimeToLoss
from dpbench.analysis.losses.noise_scale import statistical_efficiency
from dpbench.analysis.projection.economics import (
    TrainingToLoss,
    economics,
    energy_per_million,
    exact_estimate,
    mean_power,
    price_per_million,
)
from dpbench.analysis.projection.series import Series
from tests.analysis.projection.models import series


def estimate(value: float, unit: str, *, spread: float | None = None) -> Estimate:
    return Estimate(
        value=value,
        low=None if spread is None else value - spread,
        high=None if spread is None else value + spread,
        unit=unit,
        sample_size=3,
        basis="repetitions",
    )


def with_row(n: int, **values: object) -> Series:
    one = series()
    rows: dict[int, ConfigurationSummary] = {**one.rows, n: replace(one.rows[n], **values)}  # type: ignore[arg-type]
    return replace(one, rows=rows)


def reached(samples: Estimate | None) -> TimeToLoss:
    return TimeToLoss(
        target_loss=0.5,
        repetitions=3,
        censored=0 if samples else 3,
        longest_seconds=12.0,
        first_loss=2.3,
        seconds=samples and estimate(1.0, "s"),
        samples=samples,
    )


def test_nothing_given_and_nothing_measured_leaves_nothing() -> None:
    known = economics(series())
    assert known.watts is known.noise_scale is known.training is None
    assert known.notes == ()


def test_power_is_what_the_gpu_of_one_replica_drew() -> None:
    one = with_row(1, joules_per_item=estimate(0.11, "J/image", spread=0.01))
    known = economics(one)
    assert known.watts is not None
    assert known.watts.value == pytest.approx(0.11 * 32 / 0.011)  # 2,909 images/s
    assert "draws the 320 W of its GPU in ddp/gloo ×1, batch 32" in known.notes[0]
    given = economics(one, watts=700.0).watts
    assert given is not None
    assert (given.value, given.low, given.high) == (700, 700, 700)


def test_the_noise_scale_of_the_largest_group_counts() -> None:
    one = with_row(2, noise_scale=estimate(256.0, "images", spread=32.0))
    known = economics(one)
    assert known.noise_scale is not None
    assert known.noise_scale.value == 256
    assert "that of ddp/gloo ×2, batch 32" in known.notes[0]


def test_training_time_follows_from_the_largest_group_that_got_there() -> None:
    one = with_row(2, time_to_loss=reached(estimate(6400.0, "images", spread=64.0)))
    known = economics(one, target_loss=0.5, noise_scale=64.0)
    assert known.training is not None
    assert known.training.batch_size == 64
    assert known.training.fewest_steps.value == pytest.approx(50)  # 100 steps at 1 + 64/64
    assert "S_min = 50" in known.notes[-1]


def test_a_single_course_of_training_says_that_other_seeds_are_left_out() -> None:
    one = with_row(2, time_to_loss=reached(estimate(6400.0, "images")))
    known = economics(one, target_loss=0.5, noise_scale=64.0)
    assert known.training is not None
    assert known.training.steps(640).interval == pytest.approx((55, 55))
    assert any("other seeds" in note for note in known.notes)


def test_without_a_noise_scale_or_a_group_that_got_there_the_note_has_the_remedy() -> None:
    one = with_row(2, time_to_loss=reached(None))
    assert "--noise-scale-samples" in economics(one, target_loss=0.5).notes[0]
    [note] = economics(one, target_loss=0.5, noise_scale=64.0).notes
    assert "no group of ddp/gloo, batch 32 stayed there in every repetition" in note
    assert "the longest window took 12 s" in note


def test_a_loss_that_training_begins_below_is_refused() -> None:
    one = with_row(2, time_to_loss=reached(estimate(64.0, "images")))
    known = economics(one, noise_scale=320.0, target_loss=2.3)
    assert known.training is None
    assert "reached before the first step was timed (windows begin at 2.3)" in known.notes[-1]


SPEED = Estimate(
    value=1000.0, low=800.0, high=1250.0, unit="images/s", sample_size=3, basis="model"
)


def test_a_million_images_at_1000_a_second_take_8_replicas_1000_seconds() -> None:
    price = price_per_million(SPEED, 8, price_per_replica_hour=2.5)
    assert price.value == pytest.approx(8 * 2.5 * 1000 / 3600)
    assert price.interval == pytest.approx((8 * 2.5 * 800 / 3600, 8 * 2.5 * 1250 / 3600))
    assert price.unit == "currency units/million images"


def test_energy_is_power_times_time() -> None:
    watts = exact_estimate(700.0, "W")
    assert watts is not None
    energy = energy_per_million(SPEED, 8, watts=watts)
    assert energy.value == pytest.approx(8 * 700 * 1000 / 3.6e6)
    assert energy.interval == pytest.approx((8 * 700 * 800 / 3.6e6, 8 * 700 * 1250 / 3.6e6))
    assert energy.unit == "kWh/million images"


def test_mean_power_is_energy_per_item_times_items_per_second() -> None:
    joules = Estimate(
        value=0.3, low=0.2, high=0.4, unit="J/image", sample_size=3, basis="repetitions"
    )
    power = mean_power(joules, SPEED)
    assert (power.value, power.low, power.high, power.unit) == (300, 200, 400, "W")


def test_the_inverse_exchanges_the_ends() -> None:
    assert inverse(SPEED).interval == pytest.approx((1 / 1250, 1 / 800))


NOISE_SCALE = 8192.0
BATCH = 256


def exact(value: float, unit: str) -> Estimate:
    found = exact_estimate(value, unit)
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

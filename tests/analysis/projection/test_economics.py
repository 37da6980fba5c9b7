"""Where power, noise scale and training time come from, and what is said when they are missing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dpbench.analysis.configuration import ConfigurationSummary
from dpbench.analysis.estimate import Estimate
from dpbench.analysis.projection.economics import economics
from dpbench.analysis.projection.series import Series
from dpbench.analysis.time_to_loss import TimeToLoss
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

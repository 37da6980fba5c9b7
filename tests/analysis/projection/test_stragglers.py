"""Stragglers: known effects are found again, and cost what integration says."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dpbench.analysis.projection.stragglers import (
    StragglerNoise,
    calibrated_noise,
    expected_maximum,
    measured_noise,
    rare_delay,
    slowdowns,
)
from tests.analysis.projection.traces import assumed_noise

QUIET = StragglerNoise(rank_cv=0.0, time_cv=0.0, residual_cv=0.0, residuals=(0.0,))


def table(
    ranks: int = 8,
    steps: int = 2000,
    *,
    rank: float = 0.0,
    time: float = 0.0,
    residual: float = 0.01,
    seed: int = 0,
) -> np.ndarray:
    random = np.random.default_rng(seed)
    return np.exp(
        random.normal(0, 1, (ranks, 1)) * rank
        + random.normal(0, 1, (1, steps)) * time
        + random.normal(0, 1, (ranks, steps)) * residual
    )


def test_effects_of_a_table_worked_by_hand() -> None:
    # Logs: ranks ±1, steps ±2, and ±0.5 besides, so the mean squares are 4, 16 and 1.
    logs = np.array([[1 + 2 + 0.5, 1 - 2 - 0.5], [-1 + 2 - 0.5, -1 - 2 + 0.5]])
    found = measured_noise([np.exp(logs)])
    assert np.log1p(found.residual_cv**2) == pytest.approx(1.0)
    assert np.log1p(found.rank_cv**2) == pytest.approx(2.0 - 1.0 / 2)
    assert np.log1p(found.time_cv**2) == pytest.approx(8.0 - 1.0 / 2)
    assert found.residuals == pytest.approx((-1.0, -1.0, 1.0, 1.0))


def test_the_three_effects_are_told_apart() -> None:
    tables = [table(16, 400, rank=0.03, time=0.02, residual=0.01, seed=i) for i in range(20)]
    found = measured_noise(tables)
    assert found.rank_cv == pytest.approx(0.03, rel=0.15)
    assert found.time_cv == pytest.approx(0.02, rel=0.05)
    assert found.residual_cv == pytest.approx(0.01, rel=0.02)
    assert (found.ranks, found.rank_steps) == (16, 16 * 400 * 20)
    assert found.rare_probability == 0


def test_effects_that_are_not_there_are_about_zero() -> None:
    found = measured_noise([table()])
    assert found.rank_cv < 0.001
    assert found.time_cv < 0.001


def test_an_injected_spread_gives_back_its_expected_maximum() -> None:
    noise = measured_noise([table(4, 5000, residual=0.05)])
    for count, largest in ((8, 1.4236), (64, 2.3437)):
        expected = 1 + 0.05 * largest
        assert expected_maximum(noise, count) == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize(("ranks", "share"), [(2, 0.5), (8, 0.5), (8, 0.2)])
def test_rare_events_are_taken_out_and_counted(ranks: int, share: float) -> None:
    times = table(ranks, 1000)
    struck = np.random.default_rng(1).choice(1000, 10, replace=False)
    times[0, struck] *= 1 + share
    found = measured_noise([times])
    assert found.rare_probability == pytest.approx(10 / (ranks * 1000))
    assert found.rare_cost == pytest.approx(share, rel=0.1)
    assert found.residual_cv == pytest.approx(0.01, rel=0.05)


def test_what_strikes_all_ranks_at_once_is_no_rare_event() -> None:
    times = table(4, 500)
    times[:, 7] *= 2
    found = measured_noise([times])
    assert found.rare_probability == 0
    assert found.time_cv > 0.02


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (1, 0.0),
        (2, 1 / np.sqrt(np.pi)),
        (3, 1.5 / np.sqrt(np.pi)),
        (4, 1.0294),
        (8, 1.4236),
        (16, 1.7660),
        (64, 2.3437),
        (256, 2.8269),
        (1024, 3.2482),
        (10_000, 3.8516),
    ],
)
def test_normal_noise_has_the_maximum_of_normals(count: int, expected: float) -> None:
    cv = 1e-6
    found = (expected_maximum(assumed_noise(cv), count) - 1) / cv
    assert found == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize(("count", "expected"), [(1, 1.0), (2, 1.5), (8, 2.7179)])
def test_exponential_noise_has_a_harmonic_number_for_its_maximum(
    count: int, expected: float
) -> None:
    cv = 1e-6
    values = -cv * np.log1p(-(np.arange(10_000) + 0.5) / 10_000)
    noise = replace(QUIET, residual_cv=cv, residuals=tuple(values.tolist()))
    assert (expected_maximum(noise, count) - 1) / cv == pytest.approx(expected, rel=3e-3)


def test_noise_of_5_percent_costs_what_a_lognormal_costs() -> None:
    noise = assumed_noise(0.05)
    alone = expected_maximum(noise, 1)
    found = [expected_maximum(noise, n) / alone for n in (8, 64, 1000, 10_000)]
    assert found == pytest.approx([1.07, 1.12, 1.17, 1.21], abs=0.006)


def test_effects_of_ranks_add_to_residuals() -> None:
    noise = replace(assumed_noise(0.03), rank_cv=0.04)
    expected = expected_maximum(assumed_noise(0.05), 64)
    assert expected_maximum(noise, 64) == pytest.approx(expected, rel=2e-3)


def test_an_effect_of_time_has_no_maximum() -> None:
    noise = replace(QUIET, time_cv=0.1)
    assert expected_maximum(noise, 1000) == pytest.approx(expected_maximum(noise, 1))
    assert expected_maximum(noise, 1) == pytest.approx(np.sqrt(1.01))


def test_rare_events_cost_what_the_formula_says() -> None:
    noise = replace(QUIET, rare_probability=1e-3, rare_cost=0.5)
    assert expected_maximum(noise, 1000) == pytest.approx(1.316, abs=5e-4)


def test_without_noise_nobody_is_slow() -> None:
    assert expected_maximum(QUIET, 10_000) == 1.0
    assert (slowdowns(QUIET, 10_000, 5, np.random.default_rng(0)) == 1).all()


def test_beyond_what_was_measured_the_maximum_goes_on_growing() -> None:
    noise = measured_noise([table(2, 50, residual=0.05)])
    largest = np.exp(noise.residuals[-1])
    assert expected_maximum(noise, 10_000) > largest
    assert expected_maximum(noise, 1_000_000) > expected_maximum(noise, 10_000)


@pytest.mark.parametrize("count", [1, 8, 10_000])
def test_simulated_slowdowns_have_the_expected_mean(count: int) -> None:
    noise = replace(
        measured_noise([table(4, 300, rank=0.02, time=0.01, residual=0.03)]),
        rare_probability=0.002,
        rare_cost=0.3,
    )
    drawn = slowdowns(noise, count, 40_000, np.random.default_rng(0))
    assert drawn.shape == (40_000,)
    error = drawn.std() / np.sqrt(len(drawn))
    assert abs(drawn.mean() - expected_maximum(noise, count)) < 4 * error


@pytest.mark.parametrize("count", [1, 8, 10_000])
def test_a_thousand_slowdowns_have_the_expected_mean_whatever_the_seed(count: int) -> None:
    noise = replace(
        measured_noise([table(4, 300, rank=0.02, time=0.01, residual=0.03)]),
        rare_probability=0.0004,
        rare_cost=0.3,
    )
    for seed in range(5):
        drawn = slowdowns(noise, count, 1000, np.random.default_rng(seed)).mean()
        assert drawn == pytest.approx(expected_maximum(noise, count), rel=1e-3)


def test_calibrated_noise_costs_the_measured_group_what_it_cost() -> None:
    """Bursts that mostly one rank has at a time: independent draws would often strike both."""
    random = np.random.default_rng(0)
    tables = [np.exp(0.01 * random.normal(size=(2, 400))) for _ in range(3)]
    for times in tables:
        times[0, :200] *= 1.5
        times[1, 200:] *= 1.5
    target = np.mean([t.max(axis=0).mean() / t.mean() for t in tables])
    plain, noise = measured_noise(tables), calibrated_noise(tables)
    found = [expected_maximum(n, 2) / expected_maximum(n, 1) for n in (plain, noise)]
    assert found[1] == pytest.approx(target, rel=1e-3)
    assert abs(found[0] / target - 1) > 0.005
    assert noise.time_cv == plain.time_cv


def test_ranks_that_are_equal_need_no_calibration() -> None:
    times = np.tile(table(1, 50), (2, 1))
    assert calibrated_noise([times]) == measured_noise([times])


def test_of_few_steps_none_is_a_rare_event() -> None:
    times = np.ones((4, 4)) + np.diag([3.0] * 4)
    found = measured_noise([times])
    assert found.rare_probability == 0
    assert found.residual_cv > 0


def test_drawing_the_maximum_is_the_maximum_of_draws() -> None:
    noise = assumed_noise(0.05)
    random = np.random.default_rng(0)
    brute = slowdowns(noise, 1, 64 * 5_000, random).reshape(5_000, 64).max(axis=1)
    drawn = slowdowns(noise, 64, 20_000, random)
    for share in (0.1, 0.5, 0.9):
        assert np.quantile(drawn, share) == pytest.approx(np.quantile(brute, share), rel=3e-3)


@pytest.mark.parametrize(
    "times", [np.ones((1, 5)), np.ones((2, 1)), np.ones(4), np.zeros((2, 2)), np.full((2, 2), -1.0)]
)
def test_tables_that_say_nothing_are_refused(times: np.ndarray) -> None:
    with pytest.raises(ValueError, match="expected"):
        measured_noise([times])


def test_without_a_table_there_is_no_noise() -> None:
    with pytest.raises(ValueError, match="a table"):
        measured_noise([])


@pytest.mark.parametrize(
    ("count", "expected"), [(8, 0.004), (64, 0.031), (1000, 0.316), (10_000, 0.5)]
)
def test_a_rare_event_strikes_some_replica_of_many(count: int, expected: float) -> None:
    assert rare_delay(1e-3, 0.5, count) == pytest.approx(expected, abs=5e-4)


def test_events_that_always_or_never_strike() -> None:
    assert rare_delay(1.0, 0.5, 3) == 0.5
    assert rare_delay(0.0, 0.5, 3) == 0.0


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="1 or more"):
        rare_delay(0.1, 0.5, 0)
    with pytest.raises(ValueError, match="0 to 1"):
        rare_delay(1.5, 0.5, 8)

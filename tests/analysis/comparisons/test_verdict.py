"""The verdict of a check: its operating points by simulation, and every outcome by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import nctdtr

from dpbench.analysis.comparisons.comparison import compare
from dpbench.analysis.comparisons.differences import Array, paired, welch
from dpbench.analysis.comparisons.verdict import (
    ALPHA,
    ALPHA_OF_A_LOOK,
    chances,
    decide,
    judge,
    repetitions_to_settle,
)
from dpbench.analysis.distributions import noncentral_t_below
from dpbench.analysis.fields.levels import METRICS
from tests.analysis.builders import throughputs

CHECKS = 20_000
LIMIT, TWICE = math.log1p(0.03), math.log1p(0.06)


def frequencies(spread: float, runs: int, alpha: float) -> list[float]:
    """How often an unchanged candidate passes, and slower ones are caught."""
    rng = np.random.default_rng(11)
    found = []
    for shift, passing in ((0.0, True), (LIMIT, False), (TWICE, False)):
        before, after = rng.normal(scale=spread, size=(2, CHECKS, 1, runs))
        limits: Array = np.array([LIMIT])
        regressed, passed, _ = decide(welch(before, after + shift), limits, alpha)
        found.append(float((passed if passing else regressed).mean()))
    return found


@pytest.mark.parametrize("alpha", [ALPHA, ALPHA_OF_A_LOOK])
@pytest.mark.parametrize("spread", [0.01, 0.03, 0.05])
def test_the_chances_are_the_frequencies_of_simulated_checks(spread: float, alpha: float) -> None:
    runs = 5
    told = chances(spread * math.sqrt(2 / runs), 2.0 * runs - 2, LIMIT, TWICE, alpha=alpha)
    assert told is not None
    said = [told.passes_unchanged, told.caught_at_tolerance, told.caught_at_twice]
    assert said == pytest.approx(frequencies(spread, runs, alpha), abs=0.03)


def test_equal_runs_see_everything_and_a_single_run_nothing() -> None:
    told = chances(0.0, 8.0, LIMIT, TWICE, alpha=ALPHA)
    assert told is not None
    assert (told.passes_unchanged, told.caught_at_twice) == (1.0, 1.0)
    assert chances(None, None, LIMIT, TWICE, alpha=ALPHA) is None


@pytest.mark.parametrize("spread", [0.01, 0.03, 0.05])
def test_the_runs_that_are_said_to_settle_a_row_do_so_in_four_of_five_cases(spread: float) -> None:
    error = spread * math.sqrt(2 / 5)
    runs = repetitions_to_settle(error, (5, 5), LIMIT, alpha=ALPHA, paired=False)
    assert runs is not None
    unchanged, _, twice = frequencies(spread, runs, ALPHA)
    assert min(unchanged, twice) > 0.77
    fewer, _, _ = frequencies(spread, max(2, runs - 2), ALPHA)
    assert fewer < 0.8


def test_out_of_reach_is_no_number() -> None:
    assert repetitions_to_settle(1.0, (5, 5), LIMIT, alpha=ALPHA, paired=True) is None


@pytest.mark.parametrize("freedom", [1.0, 4.0, 8.0, 53.3, 1e13])
@pytest.mark.parametrize("noncentrality", [0.0, 0.7, 3.0, 12.0])
def test_the_noncentral_distribution_is_that_of_scipy(freedom: float, noncentrality: float) -> None:
    for t in (0.5, 2.1, 6.0):
        expected = float(nctdtr(min(freedom, 1e9), noncentrality, t))
        assert noncentral_t_below(freedom, noncentrality, t) == pytest.approx(expected, abs=1e-6)


SPEED = METRICS["images_per_second"]
QUIET = (100.0, 101.0, 99.0, 100.5, 99.5)


def simulate(slowdown: float, *, rows: int = 1, runs: int = 5) -> tuple[float, float]:
    """Shares of 8,000 checks that regressed and that passed: spread 1 %, tolerance 3 %."""
    rng = np.random.default_rng(round(1000 * slowdown) + rows)
    before, after = rng.normal(scale=0.01, size=(2, 8000, rows, runs))
    regressed, passed, _ = decide(
        welch(before, after + math.log(slowdown)), np.full(rows, math.log(1.03))
    )
    return float(regressed.any(axis=-1).mean()), float(passed.all(axis=-1).mean())


def test_an_unchanged_candidate_passes() -> None:
    regressed, passed = simulate(1.0)
    assert regressed <= 0.005
    assert passed >= 0.98


def test_a_slow_down_of_the_tolerance_regresses_as_often_as_chance_may() -> None:
    regressed, passed = simulate(1.03)
    assert 0.03 <= regressed <= 0.07
    assert 0.03 <= passed <= 0.07


def test_twice_the_tolerance_regresses() -> None:
    regressed, passed = simulate(1.06)
    assert regressed >= 0.97
    assert passed == 0


def test_many_rows_make_no_more_false_alarms() -> None:
    regressed, _ = simulate(1.03, rows=20)
    assert 0.02 <= regressed <= 0.07


def test_noise_that_both_sides_share_does_not_matter_in_pairs() -> None:
    rng = np.random.default_rng(1)
    before, after = rng.normal(scale=0.005, size=(2, 4000, 1, 5)) + rng.normal(
        scale=0.2, size=(4000, 1, 5)
    )
    _, passed, _ = decide(paired(before, after), np.array([math.log(1.03)]))
    assert passed.mean() >= 0.98


def test_a_planted_slow_down_regresses_and_names_its_row() -> None:
    matched = throughputs({16: QUIET, 32: QUIET}, {16: [x / 1.1 for x in QUIET], 32: QUIET})
    verdict = judge(compare(matched, SPEED), 0.03)
    assert verdict.outcome == "regressed"
    slow, same = verdict.rows
    assert (slow.outcome, same.outcome) == ("regressed", "pass")
    assert slow.low is not None
    assert slow.high is not None
    assert 1.03 < slow.low < 1.1 < slow.high
    assert slow.p_regressed is not None
    assert slow.p_regressed < 0.001
    assert slow.any_change
    assert not same.any_change
    assert same.minimum_detectable_effect == pytest.approx(0.0138, abs=0.0005)


def test_a_faster_candidate_passes_and_is_a_change() -> None:
    verdict = judge(compare(throughputs({16: QUIET}, {16: [110.0, 111, 109]}), SPEED), 0.03)
    assert verdict.outcome == "pass"
    assert verdict.rows[0].any_change


def test_noise_is_inconclusive() -> None:
    noisy = (100.0, 120.0, 80.0)
    verdict = judge(
        compare(throughputs({16: noisy, 32: QUIET}, {16: noisy, 32: QUIET}), SPEED), 0.03
    )
    assert [row.outcome for row in verdict.rows] == ["inconclusive", "pass"]
    assert verdict.outcome == "inconclusive"


def test_one_repetition_is_inconclusive_however_slow() -> None:
    (row,) = judge(compare(throughputs({16: [100.0]}, {16: [10.0]}), SPEED), 0.03).rows
    assert row.outcome == "inconclusive"
    assert (row.low, row.high, row.p_regressed, row.minimum_detectable_effect) == (None,) * 4
    assert not row.any_change


def test_every_metric_has_its_own_tolerance() -> None:
    matched = throughputs({16: QUIET}, {16: [x / 1.05 for x in QUIET]})
    rows = [*compare(matched, SPEED), *compare(matched, METRICS["step_seconds_p95"])]
    verdict = judge(rows, {"images_per_second": 0.1, "step_seconds_p95": 0.03})
    assert [row.outcome for row in verdict.rows] == ["pass", "regressed"]
    assert [row.tolerance for row in verdict.rows] == [0.1, 0.03]


def test_what_cannot_be_judged_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one comparison"):
        judge([], 0.03)
    rows = compare(throughputs({16: QUIET}, {16: QUIET}), SPEED)
    with pytest.raises(ValueError, match="> 0"):
        judge(rows, 0.0)


@pytest.mark.parametrize("alpha", [0.05, ALPHA_OF_A_LOOK])
def test_the_detectable_effect_is_found_in_four_of_five_checks(alpha: float) -> None:
    spread = (0.0, 0.01, -0.01, 0.005, -0.005)
    matched = throughputs({16: np.exp(spread)}, {16: np.exp(spread)})
    (row,) = judge(compare(matched, SPEED), 0.03, alpha=alpha).rows
    assert row.minimum_detectable_effect is not None
    shift = math.log1p(row.minimum_detectable_effect)
    rng = np.random.default_rng(7)
    before, after = rng.normal(scale=np.std(spread, ddof=1), size=(2, 8000, 1, 5))
    regressed, _, _ = decide(welch(before, after + shift), np.array([0.0]), alpha)
    assert 0.77 <= regressed.mean() <= 0.83

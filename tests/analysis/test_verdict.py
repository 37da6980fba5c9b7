"""The verdict of a check: its operating points by simulation, and every outcome by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dpbench.analysis.comparison import compare
from dpbench.analysis.differences import paired, welch
from dpbench.analysis.fields.levels import METRICS
from dpbench.analysis.verdict import ALPHA_OF_A_LOOK, decide, judge
from tests.analysis.builders import throughputs

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

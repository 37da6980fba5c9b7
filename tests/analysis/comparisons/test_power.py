"""Chances and numbers of runs against simulated checks."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dpbench.analysis.comparisons.differences import ALPHA, welch
from dpbench.analysis.comparisons.power import (
    chances,
    detectable_difference,
    repetitions_to_settle,
)
from dpbench.analysis.comparisons.verdict import ALPHA_OF_A_LOOK, decide
from dpbench.analysis.estimate import Floats

CHECKS = 20_000
LIMIT, TWICE = math.log1p(0.03), math.log1p(0.06)


def frequencies(spread: float, runs: int, alpha: float) -> list[float]:
    """How often an unchanged candidate passes, and slower ones are caught."""
    rng = np.random.default_rng(11)
    found = []
    for shift, passing in ((0.0, True), (LIMIT, False), (TWICE, False)):
        before, after = rng.normal(scale=spread, size=(2, CHECKS, 1, runs))
        limits: Floats = np.array([LIMIT])
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


def smallest_effect(spread: float, runs: int) -> float:
    """The smallest slow-down that so many runs a side detect, 0.02 for 2 %."""
    error, freedom = np.array(spread * math.sqrt(2 / runs)), np.array(2.0 * runs - 2)
    return float(np.expm1(detectable_difference(error, freedom)))


@pytest.mark.parametrize(("repetitions", "percent"), [(3, 2.5), (5, 1.7), (10, 1.2), (20, 0.8)])
def test_a_spread_of_one_percent(repetitions: int, percent: float) -> None:
    assert round(100 * smallest_effect(0.01, repetitions), 1) == percent


@pytest.mark.parametrize("repetitions", [5, 10, 20])
def test_four_in_five_such_slow_downs_are_detected(repetitions: int) -> None:
    effect = smallest_effect(0.02, repetitions)
    rng = np.random.default_rng(repetitions)
    before, after = rng.normal(scale=0.02, size=(2, 8000, repetitions))
    found = welch(before, after + math.log1p(effect))
    assert (found.p_above(0.0) < 0.05).mean() == pytest.approx(0.8, abs=0.02)
    # The same effect as a tolerance: unchanged candidates pass as often.
    unchanged = welch(before, after)
    assert (unchanged.p_below(math.log1p(effect)) < 0.05).mean() == pytest.approx(0.8, abs=0.02)

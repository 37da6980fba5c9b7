"""The chances of a check against their frequencies in simulated checks."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import nctdtr

from dpbench.analysis.differences import Array, welch
from dpbench.analysis.distributions import noncentral_t_below
from dpbench.analysis.operating import chances, repetitions_to_settle
from dpbench.analysis.verdict import ALPHA, ALPHA_OF_A_LOOK, decide

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

"""The smallest effect that so many runs show: published numbers, its meaning, its inverse."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dpbench.analysis.detectable import minimum_detectable_effect, repetitions_for
from dpbench.analysis.differences import welch


@pytest.mark.parametrize(("repetitions", "percent"), [(3, 2.5), (5, 1.7), (10, 1.2), (20, 0.8)])
def test_a_spread_of_one_percent(repetitions: int, percent: float) -> None:
    assert round(100 * minimum_detectable_effect(0.01, repetitions), 1) == percent


@pytest.mark.parametrize("repetitions", [5, 10, 20])
def test_four_in_five_such_slow_downs_are_detected(repetitions: int) -> None:
    effect = minimum_detectable_effect(0.02, repetitions)
    rng = np.random.default_rng(repetitions)
    before, after = rng.normal(scale=0.02, size=(2, 8000, repetitions))
    found = welch(before, after + math.log1p(effect))
    assert (found.p_above(0.0) < 0.05).mean() == pytest.approx(0.8, abs=0.02)
    # The same effect as a tolerance: unchanged candidates pass as often.
    unchanged = welch(before, after)
    assert (unchanged.p_below(math.log1p(effect)) < 0.05).mean() == pytest.approx(0.8, abs=0.02)


def test_no_spread_detects_everything() -> None:
    assert minimum_detectable_effect(0.0, 2) == 0
    assert repetitions_for(0.0, 0.01) == 2


@pytest.mark.parametrize("tolerance", [0.005, 0.01, 0.03, 0.1, 2.0])
def test_repetitions_are_the_fewest_that_suffice(tolerance: float) -> None:
    fewest = repetitions_for(0.02, tolerance)
    assert fewest is not None
    assert minimum_detectable_effect(0.02, fewest) <= tolerance
    assert fewest == 2 or minimum_detectable_effect(0.02, fewest - 1) > tolerance


def test_a_hopeless_tolerance_has_no_number_of_repetitions() -> None:
    assert repetitions_for(0.5, 1e-6) is None


def test_bad_values_are_refused() -> None:
    for cv in (-0.1, math.nan, math.inf):
        with pytest.raises(ValueError, match="cv"):
            minimum_detectable_effect(cv, 5)
    with pytest.raises(ValueError, match="repetitions 1"):
        minimum_detectable_effect(0.01, 1)
    for tolerance in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match="tolerance"):
            repetitions_for(0.01, tolerance)

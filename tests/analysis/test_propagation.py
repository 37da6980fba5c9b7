"""A product has the errors of both factors."""

from __future__ import annotations

import numpy as np
import pytest

from dpbench.analysis.estimate import Estimate, mean
from dpbench.analysis.propagation import product

ALONE = Estimate(value=3.0, unit="a", sample_size=1, basis="single value")


def estimate(value: float, low: float, high: float, size: int = 5) -> Estimate:
    return Estimate(
        value=value, low=low, high=high, unit="a", sample_size=size, basis="repetitions"
    )


def test_relative_errors_add_in_squares() -> None:
    # 10 ± 3 times 10 ± 4: 100, with sides of 30 and 40, so ± 50.
    found = product(estimate(10, 7, 13), estimate(10, 6, 14, size=3), unit="b")
    assert (found.value, found.low, found.high) == (100, 50, 150)
    assert (found.unit, found.sample_size, found.basis) == ("b", 3, "repetitions")


def test_each_side_is_its_own_also_where_the_first_is_negative() -> None:
    # -2 (-5 to 2) times 3 (1 to 4): -6; down 3 x 3 and 2 x 1, up 4 x 3 and 2 x 2.
    found = product(estimate(-2, -5, 2), estimate(3, 1, 4), unit="b")
    assert found.value == -6
    assert found.low == pytest.approx(-6 - np.hypot(9, 2))
    assert found.high == pytest.approx(-6 + np.hypot(12, 4))


def test_a_factor_without_an_interval_leaves_none() -> None:
    found = product(estimate(2, 1, 3), ALONE, unit="b")
    assert (found.value, found.interval, found.basis) == (6, None, "single value")


def test_the_interval_covers_the_true_product() -> None:
    rng = np.random.default_rng(0)
    first, second = rng.normal(2, 0.2, (1000, 6)), rng.normal(5, 0.3, (1000, 6))
    hits = [
        product(mean(a, unit=""), mean(b, unit=""), unit="").contains(10.0)
        for a, b in zip(first.tolist(), second.tolist(), strict=True)
    ]
    assert 0.93 <= np.mean(hits) <= 0.98

"""Values with both ends of their bands, to the digits that these support."""

from __future__ import annotations

import pytest

from dpbench.analysis.estimate import Estimate
from dpbench.report.ranged import ranged


def estimate(value: float, low: float | None = None, high: float | None = None) -> Estimate:
    return Estimate(value=value, low=low, high=high, unit="s", sample_size=3, basis="model")


@pytest.mark.parametrize(
    ("band", "text"),
    [
        ((4810, 3720, 6230), "4,800 (3,700–6,200)"),
        ((36.2, 22.4, 58.3), "36 (22–58)"),
        ((27.02, 23.6, 27.6), "27.0 (23.6–27.6)"),
        ((12_345, 10_123, 12_512), "12,300 (10,100–12,500)"),
        ((77.2, 33.9, 176), "77 (34–176)"),
        ((0.00332, 0.00179, 0.00406), "0.0033 (0.0018–0.0041)"),
        ((0.5, -0.01, 3.5), "0.5 (0.0–3.5)"),
        ((1, 0.99999, 1.00001), "1.0000 (1.0000–1.0000)"),
        ((5, 5, 7), "5.0 (5.0–7.0)"),
    ],
)
def test_digits_are_those_that_the_interval_supports(
    band: tuple[float, float, float], text: str
) -> None:
    assert ranged(estimate(*band)) == text


def test_without_an_interval_or_with_one_of_nothing_there_are_three_digits() -> None:
    assert ranged(estimate(12_345)) == "12,300"
    assert ranged(estimate(0.0012345, 0.0012345, 0.0012345)) == "0.00123"
    assert ranged(estimate(0)) == "0.00"


def test_a_scale_is_one_of_all_three() -> None:
    assert ranged(estimate(0.36, 0.22, 0.58), scale=100) == "36 (22–58)"

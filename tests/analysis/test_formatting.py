"""Numbers as they are written, to the digits that their interval supports."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dpbench.analysis.estimate import Estimate
from dpbench.analysis.formatting import percentage, plus_minus, significant, slope, time_text


def between(value: float, low: float, high: float) -> Estimate:
    return Estimate(value=value, low=low, high=high, unit="s", sample_size=3, basis="repetitions")


def about(value: float, half_width: float) -> Estimate:
    return between(value, value - half_width, value + half_width)


def single(value: float) -> Estimate:
    return Estimate(value=value, unit="s", sample_size=1, basis="single value")


@pytest.mark.parametrize(
    ("estimate", "expected"),
    [
        (about(1.7241, 0.031), "1.72 ± 0.03"),
        (about(1724.4, 31.2), "1,724 ± 31"),
        (about(2.0, 0.0), "2.000 ± 0"),
        (about(1.0, 0.0196), "1.00 ± 0.02"),
        (about(1.0, 0.0194), "1.000 ± 0.019"),
        (about(12.3, 0.0001), "12.300 ± 0.000"),
        (single(1.09917), "1.10"),
        (single(99.97), "100"),
        (single(4987.5), "4,988"),
        (between(1.9, 0.8, 4.4), "1.9 (0.8–4.4)"),
        (between(0.79, 0.71, 0.91), "0.79 (0.71–0.91)"),
        (between(27.02, 23.6, 27.6), "27 (24–28)"),
        (between(4810, 3720, 6230), "4,800 (3,700–6,200)"),
        (between(12_345, 10_123, 12_512), "12,300 (10,100–12,500)"),
        (between(0.00332, 0.00179, 0.00406), "0.0033 (0.0018–0.0041)"),
        (between(0.5, -0.01, 3.5), "0.50 (-0.01 to 3.50)"),
        (between(5, 5, 7), "5.0 (5.0–7.0)"),
        (between(1400, 1149, 1740), "1,400 ± 300"),  # symmetric as printed
        (between(-2.9, -4.8, -2.1), "-2.9 (-4.8 to -2.1)"),
    ],
)
def test_plus_minus(estimate: Estimate, expected: str) -> None:
    assert plus_minus(estimate) == expected


def test_a_ratio_beyond_one_is_not_written_as_if_it_might_be_one() -> None:
    assert plus_minus(replace(between(1.14, 1.002, 1.297), unit="×")) == "1.14 (1.00–1.30)"


@pytest.mark.parametrize(
    ("estimate", "expected"),
    [
        (about(0.6931, 0.0125), "0.69 ± 0.01"),
        (about(-1.2e-5, 3e-6), "-1.2e-5 ± 0.3e-5"),
        (about(0.1, 1.2), "0 ± 1"),
        (about(0.0, 0.0), "0.000 ± 0"),
        (between(-0.04, -5.0, 5.0), "0 ± 5"),  # a zero has no sign
        (single(0.69314718), "0.693"),
        (between(2.0, 1.5, 40.0), "2.0 (1.5–40.0)"),
    ],
)
def test_compact(estimate: Estimate, expected: str) -> None:
    assert significant(estimate) == expected


@pytest.mark.parametrize(
    ("estimate", "expected"),
    [
        (about(0.00123, 0.00004), "1.23 ± 0.04 ms"),
        (about(0.0003, 0.00574), "≤ 6.1 ms"),
        (about(-0.004, 0.001), "≈ 0"),
        (about(2.5, 0.2), "2.5 ± 0.2 s"),
        (single(-4e-5), "-40 µs"),
        (about(1e-18, 1e-17), "0 µs"),
        (between(0.006, 0.00004, 0.872), "6.0 (0.0–872.0) ms"),
    ],
)
def test_compact_time(estimate: Estimate, expected: str) -> None:
    assert time_text(estimate) == expected


@pytest.mark.parametrize(
    ("estimate", "expected"),
    [
        (between(0.824, 0.6, 1.3), "0.82 ± 58 %"),
        (about(-1.2e-5, 3e-6), "-1.2e-05 ± 25 %"),
        (single(123.4), "123"),
        (between(0.2, -0.01, 0.4), "too noisy"),
        (between(0.2, 0.1, 0.4), "too noisy"),
    ],
)
def test_a_slope_has_its_larger_side_or_is_too_noisy(estimate: Estimate, expected: str) -> None:
    assert slope(estimate) == expected


def test_a_share_whose_interval_includes_0_has_its_upper_end_alone() -> None:
    shares = (about(0.62, 0.031), about(0.03, 0.0802), about(-0.03, 0.142), single(-0.021))
    written = ["62 ± 3 %", "≤ 12 %", "≤ 12 %", "-2.10 %"]
    assert [*map(percentage, shares)] == written

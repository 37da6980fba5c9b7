from __future__ import annotations

import pytest

from dpbench import units
from dpbench.analysis.formatting import percent, span


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0 µs"),
        (1.234e-5, "12.3 µs"),
        (0.99951e-3, "1 ms"),
        (0.00456, "4.56 ms"),
        (0.9996, "1 s"),
        (7.8, "7.8 s"),
        (59.97, "1 min"),
        (200.0, "3 min 20 s"),
        (7500.0, "2 h 5 min"),
        (7230.0, "2 h"),
        (-0.002, "-2 ms"),
    ],
)
def test_a_duration_gets_the_unit_that_fits(value: float, text: str) -> None:
    assert units.seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1023, "1023 B"),
        (2048, "2 KiB"),
        (310_000_000, "296 MiB"),
        (1.44 * 2**30, "1.44 GiB"),
        (3 * 2**50, "3072 TiB"),
    ],
)
def test_a_size_gets_the_binary_unit_that_fits(value: float, text: str) -> None:
    assert units.bytes_binary(value) == text


def test_a_count_agrees_with_its_noun() -> None:
    assert (units.counted(1, "trial"), units.counted(1200, "trial")) == ("1 trial", "1,200 trials")
    assert units.stored(0, 1) == "0 of 1 trial is stored"
    assert units.stored(4, 1200) == "4 of 1,200 trials are stored"


def test_a_span_is_from_the_least_to_the_most() -> None:
    assert (span([5, 3, 4]), span([3, 3])) == ("3–5", "3")
    assert span([1500, 1], "step") == "1–1,500 steps"
    assert span([1], "step") == "1 step"


def test_a_long_list_is_cut_and_the_rest_is_counted() -> None:
    assert units.some_of(["a", "b"], 2) == "a; b"
    assert units.some_of(["a", "b", "c"], 1) == "a; and 2 more"
    assert units.some_of(["a", "b", "c"], 2, "row") == "a; b; and 1 more row"
    assert units.some_of(["a", "b", "c"], 1, "row") == "a; and 2 more rows"


@pytest.mark.parametrize(
    ("share", "digits", "text"),
    [
        (0.00613, 2, "0.61 %"),
        (0.125, 2, "12 %"),
        (0.125, 3, "12.5 %"),
        (0.994, 2, "99 %"),
        (0.996, 2, "100 %"),
        (1.0, 3, "100 %"),
        (12.34, 2, "1,234 %"),
        (-0.02, 2, "-2 %"),
        (1e-8, 2, "<0.01 %"),
        (0.0, 2, "0 %"),
    ],
)
def test_a_share_is_written_in_percent(share: float, digits: int, text: str) -> None:
    assert percent(share, digits) == text

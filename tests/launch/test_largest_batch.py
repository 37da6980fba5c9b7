"""The largest batch that fits is found in few tries, and small batches predict it cautiously."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpbench.launch.largest_batch import (
    NOISE_BYTES,
    RESOLUTION,
    available_memory_bytes,
    by_predicting,
    by_trying,
    within_time,
)

MIB = 2**20


def never() -> bool:
    return False


@settings(max_examples=60)
@given(limit=st.integers(2, 10**6), most=st.integers(2, 10**6))
def test_bisection_ends_just_below_the_limit(limit: int, most: int) -> None:
    tried: list[int] = []

    def fits(batch_size: int) -> bool:
        tried.append(batch_size)
        return batch_size <= limit

    found = by_trying(fits, most, never)
    assert found is not None
    assert found in tried
    best = min(limit, most)
    assert found <= best <= found + max(1, found // RESOLUTION)
    assert len(tried) <= 30
    assert max(tried) <= most


def test_nothing_fits_where_the_first_does_not() -> None:
    assert by_trying(lambda _: False, 100, never) is None
    assert by_predicting(lambda _: 100, 99, 100, never) is None


def test_what_fitted_stands_when_the_time_is_over() -> None:
    over = iter([False, False, True])
    assert by_trying(lambda _: True, 1000, lambda: next(over)) == 8


@settings(max_examples=60)
@given(
    base=st.integers(1, 2000),
    per_sample=st.integers(1, 2**30),
    budget=st.integers(2500, 10**5),
    most=st.integers(2, 10**6),
)
def test_on_a_line_no_batch_above_the_budget_is_measured_or_predicted(
    base: int, per_sample: int, budget: int, most: int
) -> None:
    measured: list[int] = []

    def peak(batch_size: int) -> int:
        measured.append(batch_size)
        return base * MIB + per_sample * batch_size

    found = by_predicting(peak, budget * MIB, most, never)
    if found is None:
        assert peak(measured[-1]) > budget * MIB
        assert measured[0] in (2, measured[-1])
        return
    assert found <= most
    assert peak(found) <= budget * MIB
    # Not far below it either, where samples weigh more than what equal runs differ by.
    if per_sample * measured[-2] > 2 * NOISE_BYTES and len(measured) > 2:
        assert found == most or peak(found + 1) > budget * MIB


def test_memory_that_does_not_grow_predicts_as_if_noise_were_growth() -> None:
    found = by_predicting(lambda _: 100 * MIB, 200 * MIB, 10**6, lambda: True)
    assert found == 2 + int(100 * MIB / NOISE_BYTES)


@pytest.mark.parametrize(
    ("limit", "expected"), [("max", 4096 * 1024), ("3000000", 2_000_000), ("900000", 0)]
)
def test_available_memory_is_bounded_by_the_control_group(
    tmp_path: Path, limit: str, expected: int
) -> None:
    assert available_memory_bytes(tmp_path) is None
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 8192 kB\nMemAvailable:    4096 kB\n")
    assert available_memory_bytes(tmp_path) == 4096 * 1024
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/memory.max").write_text(f"{limit}\n")
    (tmp_path / "sys/fs/cgroup/memory.current").write_text("1000000\n")
    assert available_memory_bytes(tmp_path) == expected


def test_a_batch_is_bounded_by_the_time_of_its_steps_as_the_largest_measured_one_took() -> None:
    measured = {2: 0.1, 8: 0.2}
    assert within_time(1000, measured, 2.0) == 80
    assert within_time(50, measured, 2.0) == 50
    assert within_time(50, measured, 0.001) == 0

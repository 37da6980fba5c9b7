"""Speedup and efficiency as published, and what is no scaling."""

from __future__ import annotations

import math

import pytest

from dpbench.analysis.rows import summarize
from dpbench.analysis.scaling import analyze_scaling
from dpbench.report.configurations import rows_text
from tests.analysis.builders import QUIET, run, runs, trial, varied


def test_times_of_a_fixed_amount_of_work() -> None:
    points = analyze_scaling(120.0, {8: 20.0, 2: 65.0, 4: 35.0})
    assert [p.group_size for p in points] == [2, 4, 8]
    assert [round(p.speedup, 3) for p in points] == [1.846, 3.429, 6.0]
    assert [round(100 * p.efficiency, 1) for p in points] == [92.3, 85.7, 75.0]
    fractions = [p.karp_flatt for p in points if p.karp_flatt is not None]
    assert [round(value, 3) for value in fractions] == [0.083, 0.056, 0.048]


def test_throughputs_also_faster_than_linear() -> None:
    points = analyze_scaling(1.0, {1: 1.0, 2: 2.5, 4: 3.5}, kind="throughput")
    assert [(p.speedup, p.efficiency) for p in points] == [(1.0, 1.0), (2.5, 1.25), (3.5, 0.875)]
    assert [p.karp_flatt for p in points] == [None, pytest.approx(-0.2), pytest.approx(1 / 21)]


def test_a_start_of_several_replicas_is_labeled() -> None:
    four, eight = analyze_scaling(65.0, {4: 35.0, 8: 20.0}, start_group_size=2)
    assert (four.start_group_size, eight.start_group_size) == (2, 2)
    assert [round(p.speedup, 3) for p in (four, eight)] == [1.857, 3.25]
    assert [round(p.efficiency, 3) for p in (four, eight)] == [0.929, 0.812]
    assert eight.karp_flatt == pytest.approx((1 / 3.25 - 1 / 4) / (1 - 1 / 4))
    (two,) = analyze_scaling(65.0, {2: 65.0}, start_group_size=2)
    assert (two.efficiency, two.karp_flatt) == (1.0, None)
    with pytest.raises(ValueError, match="whole number >= 1"):
        analyze_scaling(65.0, {4: 35.0}, start_group_size=0)


@pytest.mark.parametrize("bad", [0, -1.0, math.nan, math.inf, None, "120", True])
def test_a_value_that_is_not_positive_is_refused(bad: object) -> None:
    with pytest.raises(ValueError, match="expected a positive number"):
        analyze_scaling(bad, {2: 1.0})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="group size 2"):
        analyze_scaling(1.0, {2: bad})  # type: ignore[dict-item]


@pytest.mark.parametrize("bad", [0, -2, 2.5, None, "2", True])
def test_a_group_size_that_is_not_whole_is_refused(bad: object) -> None:
    with pytest.raises(ValueError, match="whole number >= 1"):
        analyze_scaling(1.0, {bad: 1.0})  # type: ignore[dict-item]


def test_rows_of_other_settings_are_compared_with_single_of_the_same() -> None:
    speeds = {("f32", 1): 100.0, ("bf16", 1): 200.0, ("f32", 2): 150.0, ("bf16", 2): 320.0}
    records = []
    for (dtype, size), speed in speeds.items():
        spec = trial(group_size=2) if size == 2 else trial("single", "none")
        records.append(run(varied(spec, dtype=dtype), speed))
    rows = summarize(records)
    found = {row.label: row.speedup.value for row in rows if row.speedup and row.group_size == 2}
    assert found == pytest.approx(
        {"ddp/gloo ×2, batch 32": 1.5, "ddp(bf16)/gloo ×2, batch 32": 1.6}
    )


def test_without_single_a_speedup_is_relative_and_says_so() -> None:
    one, two = trial(), trial(group_size=2)
    _, row = summarize([*runs(one, QUIET), *runs(two, [1.6 * speed for speed in QUIET])])
    assert row.speedup is not None
    assert row.speedup.value == pytest.approx(1.6)
    assert "\nSpeedup: relative to its own group size 1 at" in rows_text([row])

"""Speedup and efficiency as published, and what is no scaling."""

from __future__ import annotations

import math

import pytest

from dpbench.analysis.metrics import METRICS
from dpbench.analysis.scaling import analyze_scaling
from dpbench.analysis.summary import summarize
from dpbench.records.trial import TrialRecord
from tests.analysis.builders import QUIET, runs, trial


def test_times_of_a_fixed_amount_of_work() -> None:
    points = analyze_scaling(120.0, {8: 20.0, 2: 65.0, 4: 35.0})
    assert [p.group_size for p in points] == [2, 4, 8]
    assert [round(p.speedup, 3) for p in points] == [1.846, 3.429, 6.0]
    assert [round(100 * p.efficiency, 1) for p in points] == [92.3, 85.7, 75.0]
    assert not any(p.faster_than_linear for p in points)


def test_throughputs() -> None:
    (point,) = analyze_scaling(1724.4, {2: 2261.0}, kind="throughput")
    assert (round(point.speedup, 3), round(point.efficiency, 3)) == (1.311, 0.656)


def test_faster_than_linear_is_flagged() -> None:
    (point,) = analyze_scaling(100.0, {2: 40.0})
    assert point.faster_than_linear


def test_published_times_and_their_serial_fraction() -> None:
    points = analyze_scaling(120.0, {2: 65.0, 4: 35.0, 8: 20.0})
    fractions = [p.karp_flatt for p in points if p.karp_flatt is not None]
    assert [round(value, 3) for value in fractions] == [0.083, 0.056, 0.048]
    speedups = analyze_scaling(1.0, {1: 1.0, 2: 1.8, 4: 3.5, 8: 6.5}, kind="throughput")
    assert [p.efficiency for p in speedups] == [1.0, 0.9, 0.875, 0.8125]
    assert [p.karp_flatt and round(p.karp_flatt, 3) for p in speedups] == [
        None,
        *(0.111, 0.048, 0.033),
    ]


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


def test_copies_on_the_largest_group_alone_are_compared_with_the_plain_module() -> None:
    plain = runs(trial("single", "none"), QUIET)
    copies = runs(trial("independent", "none", 2), [1.9 * speed for speed in QUIET])
    slower_copy = runs(trial("independent", "none"), [0.5 * speed for speed in QUIET])

    def speedup(*groups: list[TrialRecord]) -> float | None:
        rows = summarize([record for group in groups for record in group])
        (row,) = (row for row in rows if row.label == "independent ×2, batch 32")
        return None if row.speedup is None else row.speedup.value

    assert speedup(plain, copies) == pytest.approx(1.9)
    assert speedup(plain, copies, slower_copy) == pytest.approx(3.8)
    assert speedup(copies) is None
    efficiency = METRICS["efficiency"].reader([*plain, *copies])
    assert [efficiency(record) for record in copies] == [pytest.approx(0.95)] * len(QUIET)
    efficiency = METRICS["efficiency"].reader([*plain, *copies, *slower_copy[1:]])
    assert efficiency(copies[0]) is None  # one base for all repetitions, as for the speedup
    assert efficiency(copies[1]) == pytest.approx(1.9)

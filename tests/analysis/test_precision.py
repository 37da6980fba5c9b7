"""Widths of intervals worked by hand, and groups of runs in simulated ones."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from dpbench.analysis.estimate import Estimate
from dpbench.analysis.precision import precision_note, relative_half_widths, too_wide, two_modes
from dpbench.records.trial import RankMeasurement, Status, TrialRecord, Window
from dpbench.specs import TrialSpec
from tests.builders import trial_spec

SPEC = trial_spec(implementation="single", backend="none", group_size=1)


def at_speeds(spec: TrialSpec, *speeds: float) -> list[TrialRecord]:
    return [one_step(replace(spec, repetition=i), speed) for i, speed in enumerate(speeds)]


def one_step(spec: TrialSpec, speed: float, status: Status = Status.COMPLETED) -> TrialRecord:
    window = Window(start_seconds=0.0, seconds=1 / speed, step_seconds=(1 / speed,), samples=1)
    rank = RankMeasurement(rank=0, pid=1, device="cpu", timed=window, setup_seconds=0.0)
    return TrialRecord(
        trial=spec,
        environment_id="e",
        started_utc="2026-01-01T00:00:00.000",
        duration_seconds=1.0,
        status=status,
        ranks=(rank,),
    )


def test_the_half_width_is_the_larger_side_of_the_log_interval() -> None:
    """ln 1 and ln e: mean 1/2, standard error 1/2, t(1) = 12.706: up by exp(6.353) - 1."""
    widths = relative_half_widths(at_speeds(SPEC, 1.0, math.e))
    assert widths[SPEC] == pytest.approx(math.exp(12.7062 / 2) - 1, rel=1e-4)


def test_equal_speeds_are_as_precise_as_can_be_and_one_alone_says_nothing() -> None:
    other = trial_spec()
    found = relative_half_widths([*at_speeds(SPEC, 2.0, 2.0), *at_speeds(other, 2.0)])
    assert found == {SPEC: 0.0, other: None}


def test_only_what_has_a_speed_can_be_too_wide() -> None:
    failed = one_step(trial_spec(), 1.0, Status.FAILED)
    wide = trial_spec(batch_size=8)
    runs = [
        *at_speeds(SPEC, 2.0, 2.0),
        failed,
        *at_speeds(wide, 1.0, 1.1),
        *at_speeds(wide, 1.0, 1.2),
    ]
    assert too_wide(runs, 0.01) == {wide}
    assert too_wide(at_speeds(wide, 1.0), 0.01) == {wide}


def estimate(value: float, reach: float) -> Estimate:
    return Estimate(
        value=value,
        low=value - reach,
        high=value + reach,
        unit="images/s",
        sample_size=5,
        basis="repetitions",
    )


def test_the_note_says_what_was_reached() -> None:
    rows = [("a", estimate(100.0, 0.5)), ("b", estimate(100.0, 0.8))]
    assert precision_note(rows, 0.01) == (
        "--precision 1 % is reached in every row; the widest interval is ± 0.8 %"
    )
    assert precision_note([*rows, ("c", None)], 0.01) == (
        "--precision 1 % is reached in the other rows; the widest interval is ± 0.8 %; not known, "
        "for want of two repetitions, in c"
    )


def test_the_note_names_what_is_wider() -> None:
    rows = [("a", estimate(100.0, 0.5)), ("b", estimate(100.0, 3.0))]
    assert precision_note(rows, 0.01) == (
        "--precision 1 % is not reached within the budget by b (± 3.0 %)"
    )
    single = replace(estimate(1.0, 0.1), low=None, high=None, basis="single value")
    assert "no row has the two repetitions" in precision_note([("a", single)], 0.01)


def test_two_groups_are_told_with_their_means() -> None:
    assert two_modes([100.0, 121.0, 101.0, 120.0, 119.0]) == (100.5, 120.0)


@pytest.mark.parametrize(
    "speeds",
    [
        (100.0, 101.0, 120.0),  # two are needed in each group
        (100.0, 101.0, 102.0, 103.0, 150.0),  # one outlier
        (100.0, 100.1, 102.0, 102.1),  # closer than 3 %
        (100.0, 104.0, 110.0, 115.0),  # evenly apart
        (100.0, 100.0, 100.0, 100.0),
    ],
)
def test_one_group_and_outliers_are_no_two_groups(speeds: tuple[float, ...]) -> None:
    assert two_modes(speeds) is None


@pytest.mark.parametrize("count", [4, 5, 6, 8, 12, 20, 27])
def test_normal_runs_rarely_look_like_two_groups(count: int) -> None:
    generator = np.random.default_rng(count)
    speeds = 100 * np.exp(0.05 * generator.standard_normal((4000, count)))
    assert sum(two_modes(row) is not None for row in speeds) / 4000 <= 0.016


@pytest.mark.parametrize("count", [6, 8, 12, 20])
def test_groups_that_are_far_apart_are_seen_however_many_runs_there_are(count: int) -> None:
    """10 % apart, and runs of a group differ by 0.5 %."""
    generator = np.random.default_rng(count)
    groups = np.where(np.arange(count) % 2, 110.0, 100.0)
    speeds = groups * np.exp(0.005 * generator.standard_normal((1000, count)))
    assert sum(two_modes(row) is not None for row in speeds) / 1000 >= 0.95

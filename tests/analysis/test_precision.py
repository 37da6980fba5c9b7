from __future__ import annotations

import math
from dataclasses import replace

import pytest

from dpbench.analysis.estimate import Estimate
from dpbench.analysis.precision import precision_note, relative_half_widths, too_wide
from dpbench.records import RankMeasurement, Status, TrialRecord, Window
from dpbench.specs import TrialSpec
from tests.builders import trial_spec

SPEC = trial_spec(implementation="single", backend="none", group_size=1)


def records(spec: TrialSpec, *speeds: float) -> list[TrialRecord]:
    return [record(replace(spec, repetition=i), speed) for i, speed in enumerate(speeds)]


def record(spec: TrialSpec, speed: float, status: Status = Status.COMPLETED) -> TrialRecord:
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
    widths = relative_half_widths(records(SPEC, 1.0, math.e))
    assert widths[SPEC] == pytest.approx(math.exp(12.7062 / 2) - 1, rel=1e-4)


def test_equal_speeds_are_as_precise_as_can_be_and_one_alone_says_nothing() -> None:
    other = trial_spec()
    found = relative_half_widths([*records(SPEC, 2.0, 2.0), *records(other, 2.0)])
    assert found == {SPEC: 0.0, other: None}


def test_only_what_has_a_speed_can_be_too_wide() -> None:
    failed = record(trial_spec(), 1.0, Status.FAILED)
    wide = trial_spec(batch_size=8)
    runs = [*records(SPEC, 2.0, 2.0), failed, *records(wide, 1.0, 1.1), *records(wide, 1.0, 1.2)]
    assert too_wide(runs, 0.01) == {wide}
    assert too_wide(records(wide, 1.0), 0.01) == {wide}


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

"""A whole check: its notes, what it asks more repetitions for, and what growing them costs."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from dpbench.analysis.comparisons.assessment import assess
from dpbench.analysis.comparisons.differences import Differences, welch
from dpbench.analysis.comparisons.matching import NotComparable
from dpbench.analysis.comparisons.verdict import ALPHA_OF_A_LOOK, decide
from dpbench.grid import next_repetitions
from dpbench.records import Status
from tests.analysis.builders import (
    ALL_PASS,
    INCONCLUSIVE,
    NOISY,
    QUIET,
    REGRESSED,
    assessment,
    record,
    runs,
    side,
    slower,
    trial,
)


def test_the_outcome_is_that_of_the_worst_row() -> None:
    assert [row.outcome for row in REGRESSED.verdict.rows] == ["pass", "regressed"]
    assert REGRESSED.verdict.outcome == "regressed"
    assert ALL_PASS.verdict.outcome == "pass"


def test_each_metric_has_its_own_tolerance() -> None:
    found = assessment(
        {16: slower(QUIET, 0.10)},
        tolerances={"images_per_second": 0.20, "step_seconds_p50": 0.03},
    )
    outcomes = {row.comparison.metric: row.outcome for row in found.verdict.rows}
    assert outcomes == {"images_per_second": "pass", "step_seconds_p50": "regressed"}


def test_more_repetitions_are_wanted_of_both_sides_of_an_inconclusive_row_only() -> None:
    found = assessment({16: NOISY, 32: QUIET})
    assert {spec.batch_size for spec in found.unsettled()} == {16}
    against = [
        side("x", runs(trial("torch-ddp"), QUIET), runs(trial(), NOISY), source="x", where=where)
        for where in ({"implementation": "torch-ddp"}, {"implementation": "ddp"})
    ]
    both = assess([(against[0], against[1])], {"images_per_second": 0.03}).unsettled()
    assert {spec.implementation for spec in both} == {"ddp", "torch-ddp"}


def test_a_row_that_no_repetition_can_settle_is_not_asked_for() -> None:
    failed = record(trial(batch_size=16), status=Status.FAILED, reason="rank 1 was killed")
    base = side("before", runs(trial(batch_size=16), QUIET))
    found = assess([(base, side("after", [failed]))], {"images_per_second": 0.03})
    assert found.verdict.outcome == "inconclusive"
    assert found.unsettled() == frozenset()
    assert found.failures == (("ddp/gloo ×1, batch 16", "failed: rank 1 was killed"),)


def test_a_tolerance_below_what_the_runs_show_is_said_with_the_remedy() -> None:
    (note,) = assessment({16: slower(QUIET, 0.005)}, tolerances={"images_per_second": 0.0125}).notes
    # A spread of 0.79 % a side: 1.72 × 0.79 % at 5 runs; 1.25 % takes 6 of them.
    assert note == (
        "tolerance 1.25 % is below the smallest effect that 5 repetitions can show here, 1.37 % "
        "(images_per_second of ddp/gloo ×1, batch 16): raise --repetitions to 6 or the tolerance"
    )


def test_a_tolerance_that_a_row_passed_is_not_out_of_reach() -> None:
    found = assessment({16: QUIET}, tolerances={"images_per_second": 0.01})
    (row,) = found.verdict.rows
    assert row.outcome == "pass"
    assert row.minimum_detectable_effect is not None
    assert row.minimum_detectable_effect > row.tolerance
    assert found.notes == ()


def test_the_remedy_is_for_bounds_as_strict_as_the_verdicts() -> None:
    base = side("before", runs(trial(), QUIET))
    candidate = side("after", runs(trial(), slower(QUIET, 0.005)))
    notes = [
        assess([(base, candidate)], {"images_per_second": 0.0125}, alpha=alpha).notes[0]
        for alpha in (0.05, ALPHA_OF_A_LOOK)
    ]
    # 3.35 instead of 2.73 standard errors of 0.5 % at 5 runs a side.
    assert "can show here, 1.69 %" in notes[1]
    assert [int(note.split("repetitions to ")[1].split()[0]) for note in notes] == [6, 8]


def test_sides_of_different_sizes_are_both_counted() -> None:
    (note,) = assessment({16: NOISY[:2]}).notes
    assert "that 5 and 2 repetitions can show here" in note


def test_the_remedy_for_runs_side_by_side_counts_their_fewer_degrees_of_freedom() -> None:
    ours = [a * f for a, f in zip(QUIET, (1.0, 1.03, 0.97, 1.02, 0.98), strict=True)]
    sweep = side("x", runs(trial("torch-ddp"), QUIET), runs(trial(), ours), source="x")
    base, candidate = (
        replace(sweep, where={"implementation": name}) for name in ("torch-ddp", "ddp")
    )
    (note,) = assess([(base, candidate)], {"images_per_second": 0.02}).notes
    # Differences spread by 2.55 %, so their mean by 1.14 %; × 3.04 at 4 degrees of freedom.
    assert "5 repetitions can show here, 3.53 %" in note
    assert "raise --repetitions to 12 or" in note


def test_of_hopeless_noise_it_does_not_ask_for_hundreds_of_repetitions() -> None:
    assert INCONCLUSIVE.notes[-1].endswith("raise the tolerance, or find a quieter machine")


def test_what_only_one_side_has_is_named() -> None:
    extra = runs(trial(batch_size=64), QUIET)
    assert assessment({16: QUIET}, *extra).notes == (
        "only in after, not judged: ddp/gloo ×1, batch 64",
    )


def test_a_metric_that_nobody_measured_cannot_be_compared() -> None:
    with pytest.raises(NotComparable, match="efficiency was measured in no configuration"):
        assessment({16: QUIET}, tolerances={"efficiency": 0.03})


@pytest.mark.parametrize(
    ("slowdown", "regressed_at_most", "passed_at_least"),
    [(1.00, 0.005, 0.98), (1.03, 0.07, 0.03), (1.06, 1.0, 0.0)],
)
def test_growing_repetitions_keep_the_operating_points(
    slowdown: float, regressed_at_most: float, passed_at_least: float
) -> None:
    """Spread 2 %, tolerance 3 %, looked at after 5, 8, 12, 18 and 27 runs."""
    rng = np.random.default_rng(5)
    before, after = rng.normal(scale=0.02, size=(2, 4000, 1, 27))
    outcome = np.zeros(4000)
    repetitions = 5
    while repetitions <= 27:
        found: Differences = welch(
            before[..., :repetitions], after[..., :repetitions] + math.log(slowdown)
        )
        regressed, passed, _ = decide(found, np.array([math.log(1.03)]), ALPHA_OF_A_LOOK)
        now = np.where(regressed[:, 0], 1, np.where(passed[:, 0], -1, 0))
        outcome = np.where(outcome == 0, now, outcome)
        repetitions = next_repetitions(repetitions)
    assert (outcome == 1).mean() <= regressed_at_most
    assert (outcome == -1).mean() >= passed_at_least
    if slowdown == 1.03:
        assert (outcome == 1).mean() >= 0.03
    if slowdown > 1.03:
        assert (outcome == 1).mean() >= 0.97


def test_what_was_judged_against_another_candidate_is_not_left_alone() -> None:
    base = side(
        "torch-ddp",
        *(runs(trial("torch-ddp", group_size=size), QUIET) for size in (1, 2, 4)),
        where={"implementation": "torch-ddp"},
    )
    candidates = [
        side(
            name,
            *(runs(trial(name, group_size=size), QUIET) for size in sizes),
            where={"implementation": name},
        )
        for name, sizes in (("ddp", (1, 2)), ("single", (1,)))
    ]
    found = assess([(base, candidate) for candidate in candidates], {"images_per_second": 0.03})
    assert found.notes == ("only in torch-ddp, not judged: torch-ddp/gloo ×4, batch 32",)


def test_a_trial_that_completed_when_it_was_run_again_is_no_failure() -> None:
    failed = record(trial(batch_size=64), status=Status.FAILED, reason="rank 1 was killed")
    again = runs(trial(batch_size=64), QUIET)
    assert assessment({16: QUIET}, failed).failures
    assert assessment({16: QUIET}, failed, *again).failures == ()


def test_failures_of_the_baseline_are_named_too() -> None:
    killed = record(trial(batch_size=64), status=Status.FAILED, reason="rank 1 was killed")
    base = side("before", runs(trial(), QUIET), [killed])
    found = assess([(base, side("after", runs(trial(), QUIET)))], {"images_per_second": 0.03})
    assert found.failures == (("ddp/gloo ×1, batch 64 (baseline)", "failed: rank 1 was killed"),)


def test_what_was_put_aside_by_force_is_said() -> None:
    base = side("before", runs(trial(batch_size=8), QUIET))
    candidate = side("after", runs(trial(), QUIET))
    found = assess([(base, candidate)], {"images_per_second": 0.03}, force=True)
    assert found.notes == ("forced: compared although they differ in batch_size",)

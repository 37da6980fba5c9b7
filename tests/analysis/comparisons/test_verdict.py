"""The verdict of a check: its operating points by simulation, and every outcome by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from dpbench.analysis.comparisons.comparison import compare
from dpbench.analysis.comparisons.differences import Differences, paired, welch
from dpbench.analysis.comparisons.matching import NotComparable
from dpbench.analysis.comparisons.verdict import ALPHA_OF_A_LOOK, assess, decide, judge
from dpbench.analysis.metrics import METRICS
from dpbench.records.trial import Status
from dpbench.run.sweep.grid import next_repetitions
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
    throughputs,
    trial,
)

SPEED = METRICS["images_per_second"]


def simulate(slowdown: float, *, rows: int = 1, runs: int = 5) -> tuple[float, float]:
    """Shares of 8,000 checks that regressed and that passed: spread 1 %, tolerance 3 %."""
    rng = np.random.default_rng(round(1000 * slowdown) + rows)
    before, after = rng.normal(scale=0.01, size=(2, 8000, rows, runs))
    regressed, passed, _ = decide(
        welch(before, after + math.log(slowdown)), np.full(rows, math.log(1.03))
    )
    return float(regressed.any(axis=-1).mean()), float(passed.all(axis=-1).mean())


def test_an_unchanged_candidate_passes() -> None:
    regressed, passed = simulate(1.0)
    assert regressed <= 0.005
    assert passed >= 0.98


def test_a_slow_down_of_the_tolerance_regresses_as_often_as_chance_may() -> None:
    regressed, passed = simulate(1.03)
    assert 0.03 <= regressed <= 0.07
    assert 0.03 <= passed <= 0.07


def test_twice_the_tolerance_regresses() -> None:
    regressed, passed = simulate(1.06)
    assert regressed >= 0.97
    assert passed == 0


def test_many_rows_make_no_more_false_alarms() -> None:
    regressed, _ = simulate(1.03, rows=20)
    assert 0.02 <= regressed <= 0.07


def test_noise_that_both_sides_share_does_not_matter_in_pairs() -> None:
    rng = np.random.default_rng(1)
    before, after = rng.normal(scale=0.005, size=(2, 4000, 1, 5)) + rng.normal(
        scale=0.2, size=(4000, 1, 5)
    )
    _, passed, _ = decide(paired(before, after), np.array([math.log(1.03)]))
    assert passed.mean() >= 0.98


def test_a_planted_slow_down_regresses_and_names_its_row() -> None:
    matched = throughputs({16: QUIET, 32: QUIET}, {16: [x / 1.1 for x in QUIET], 32: QUIET})
    verdict = judge(compare(matched, SPEED), 0.03)
    assert verdict.outcome == "regressed"
    slow, same = verdict.rows
    assert (slow.outcome, same.outcome) == ("regressed", "pass")
    assert slow.low is not None
    assert slow.high is not None
    assert 1.03 < slow.low < 1.1 < slow.high
    assert slow.p_regressed is not None
    assert slow.p_regressed < 0.001
    assert slow.any_change
    assert not same.any_change
    assert same.minimum_detectable_effect == pytest.approx(0.0138, abs=0.0005)


def test_a_faster_candidate_passes_and_is_a_change() -> None:
    verdict = judge(compare(throughputs({16: QUIET}, {16: [1100.0, 1110, 1090]}), SPEED), 0.03)
    assert verdict.outcome == "pass"
    assert verdict.rows[0].any_change


def test_noise_is_inconclusive() -> None:
    noisy = (100.0, 120.0, 80.0)
    verdict = judge(
        compare(throughputs({16: noisy, 32: QUIET}, {16: noisy, 32: QUIET}), SPEED), 0.03
    )
    assert [row.outcome for row in verdict.rows] == ["inconclusive", "pass"]
    assert verdict.outcome == "inconclusive"


def test_one_repetition_is_inconclusive_however_slow() -> None:
    (row,) = judge(compare(throughputs({16: [100.0]}, {16: [10.0]}), SPEED), 0.03).rows
    assert row.outcome == "inconclusive"
    assert (row.low, row.high, row.p_regressed, row.minimum_detectable_effect) == (None,) * 4
    assert not row.any_change


def test_every_metric_has_its_own_tolerance() -> None:
    matched = throughputs({16: QUIET}, {16: [x / 1.05 for x in QUIET]})
    rows = [*compare(matched, SPEED), *compare(matched, METRICS["step_seconds_p95"])]
    verdict = judge(rows, {"images_per_second": 0.1, "step_seconds_p95": 0.03})
    assert [row.outcome for row in verdict.rows] == ["pass", "regressed"]
    assert [row.tolerance for row in verdict.rows] == [0.1, 0.03]


def test_what_cannot_be_judged_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one comparison"):
        judge([], 0.03)
    rows = compare(throughputs({16: QUIET}, {16: QUIET}), SPEED)
    with pytest.raises(ValueError, match="> 0"):
        judge(rows, 0.0)


@pytest.mark.parametrize("alpha", [0.05, ALPHA_OF_A_LOOK])
def test_the_detectable_effect_is_found_in_four_of_five_checks(alpha: float) -> None:
    spread = (0.0, 0.01, -0.01, 0.005, -0.005)
    matched = throughputs({16: np.exp(spread)}, {16: np.exp(spread)})
    (row,) = judge(compare(matched, SPEED), 0.03, alpha=alpha).rows
    assert row.minimum_detectable_effect is not None
    shift = math.log1p(row.minimum_detectable_effect)
    rng = np.random.default_rng(7)
    before, after = rng.normal(scale=np.std(spread, ddof=1), size=(2, 8000, 1, 5))
    regressed, _, _ = decide(welch(before, after + shift), np.array([0.0]), alpha)
    assert 0.77 <= regressed.mean() <= 0.83


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

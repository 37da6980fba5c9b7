"""The rows of a sweep after each of its trials, and how much longer it takes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dpbench.records.trial import Status, TrialRecord
from dpbench.report.progress import state as module
from dpbench.report.progress.state import ProgressState, TimeLeft, describe, left
from tests.analysis.builders import record, run, trial
from tests.report.progress.palindrome import PALINDROME, A, B, again, skipped, took


@pytest.mark.parametrize(
    ("finished", "text"),
    [
        (
            run(B, 1000.0, duration_seconds=1.24),
            "ddp/gloo ×2, batch 8, repetition 1: 1,000 images/s (1.24 s)",
        ),
        (
            run(B, 0.4123, duration_seconds=90.0, item="sequences"),
            "ddp/gloo ×2, batch 8, repetition 1: 0.412 sequences/s (1 min 30 s)",
        ),
        (
            run(replace(A, repetition=1), 1000.0, duration_seconds=90.0),
            "dp ×1, batch 8, repetition 2: 1,000 images/s (1 min 30 s)",
        ),
        (skipped(B), "ddp/gloo ×2, batch 8, repetition 1: skipped: nccl needs a GPU"),
        (
            record(B, status=Status.TIMED_OUT, reason="rank 1 was in loss (m.py:3)"),
            "ddp/gloo ×2, batch 8, repetition 1: timed out: rank 1 was in loss (m.py:3) (1 s)",
        ),
    ],
)
def test_a_record_is_described_in_one_line(finished: TrialRecord, text: str) -> None:
    assert describe(finished) == text


def test_less_than_a_second_is_not_counted_down() -> None:
    assert [left(90.0), left(0.4)] == ["1 min 30 s left", "under 1 s left"]


def states(state: ProgressState) -> list[str]:
    return [row.state for row in state.rows]


@pytest.fixture
def state() -> ProgressState:
    state = ProgressState()
    state.planned(PALINDROME)
    return state


def test_every_configuration_has_a_row_in_the_order_of_the_plan(state: ProgressState) -> None:
    assert [(row.label, row.done, row.planned) for row in state.rows] == [
        ("dp ×1, batch 8", 0, 2),
        ("ddp/gloo ×2, batch 8", 0, 2),
    ]
    assert states(state) == ["queued", "queued"]
    assert (state.done, state.planned_in_all) == (0, 4)


def test_a_row_is_done_after_its_last_repetition(state: ProgressState) -> None:
    state.started(A)
    assert states(state) == ["running", "queued"]
    state.finished(run(A, 1000.0))
    assert states(state) == ["queued", "queued"]
    state.finished(run(again(A), 1000.0))
    assert states(state) == ["done", "queued"]


def test_the_speed_is_the_geometric_mean_of_the_repetitions_so_far(state: ProgressState) -> None:
    state.finished(run(A, 1000.0))
    assert state.rows[0].speed == pytest.approx(1000.0)
    state.finished(run(again(A), 4000.0))
    assert state.rows[0].speed == pytest.approx(2000.0)
    assert state.rows[0].item == "images"


def test_one_failure_makes_a_row_failed_and_keeps_its_reason(state: ProgressState) -> None:
    state.finished(record(B, status=Status.OUT_OF_MEMORY, reason="rank 1 held 3 GiB"))
    assert states(state) == ["queued", "failed"]
    state.started(again(B))
    state.finished(run(again(B), 1000.0))
    assert states(state) == ["queued", "failed"]
    assert state.rows[1].remark == "out of memory: rank 1 held 3 GiB"


def test_what_is_skipped_says_so_from_the_first_time_on(state: ProgressState) -> None:
    state.finished(record(B, status=Status.SKIPPED, reason="nccl needs a GPU"))
    assert states(state) == ["queued", "skipped"]


def test_a_plan_that_grows_asks_for_more_of_the_same_rows(state: ProgressState) -> None:
    for spec in PALINDROME:
        state.finished(run(spec, 1000.0))
    state.planned([again(B, 2)])
    assert [(row.done, row.planned) for row in state.rows] == [(2, 2), (2, 3)]
    assert (state.done, state.planned_in_all) == (4, 5)
    assert states(state) == ["done", "queued"]


def test_the_time_left_shrinks_while_a_trial_runs_but_not_by_more_than_it_should_take(
    state: ProgressState, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr(module, "monotonic", lambda: clock[0])
    state.finished(run(A, 1000.0, duration_seconds=10.0))
    state.started(B)
    assert state.seconds_left() == 30.0
    clock[0] = 104.0
    assert (state.elapsed_seconds(), state.seconds_left()) == (4.0, 26.0)
    clock[0] = 150.0
    assert state.seconds_left() == 20.0


def test_the_time_left_follows_what_the_same_configurations_took() -> None:
    """A took 10: B, B and A remain, and B is taken for a typical trial: 10 + 10 + 10. Then B
    took 2: B and A remain. Then B took 4: only A remains."""
    left = TimeLeft(PALINDROME)
    assert left.seconds() is None
    left.finished(took(A, 10.0))
    assert left.seconds() == 30.0
    left.finished(took(B, 2.0))
    assert left.seconds() == 2.0 + 10.0
    left.finished(took(again(B), 4.0))
    assert left.seconds() == 10.0
    left.finished(took(again(A), 11.0))
    assert left.seconds() == 0.0


def test_an_unknown_configuration_is_taken_for_the_mean_of_those_measured() -> None:
    c = trial("single", "none", batch_size=8)
    left = TimeLeft([A, B, c])
    left.finished(took(A, 10.0))
    left.finished(took(B, 2.0))
    assert left.seconds() == left.expected_seconds(c) == 6.0
    assert left.expected_seconds(again(A)) == 10.0


def test_a_skipped_trial_takes_no_time_and_says_nothing_of_the_others() -> None:
    left = TimeLeft(PALINDROME)
    left.finished(skipped(A))
    assert left.seconds() is None
    left.finished(took(B, 4.0))
    assert left.seconds() == 4.0 + 0.0  # B again, and A, which will be skipped again


def test_what_an_earlier_run_took_counts_for_the_rest_of_the_plan() -> None:
    left = TimeLeft()
    left.finished(took(A, 10.0))
    left.finished(took(B, 2.0))
    left.planned([again(B), again(A), again(A, 2)])
    assert left.seconds() == 2.0 + 10.0 + 10.0

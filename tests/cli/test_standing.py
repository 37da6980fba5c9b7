"""How a sweep stands after each of its trials."""

from __future__ import annotations

import pytest

from dpbench.cli import standing as module
from dpbench.cli.standing import Standing
from dpbench.records import Status
from tests.analysis.builders import record, run
from tests.cli.palindrome import PALINDROME, A, B, again


def states(standing: Standing) -> list[str]:
    return [row.state for row in standing.rows]


@pytest.fixture
def standing() -> Standing:
    standing = Standing()
    standing.planned(PALINDROME)
    return standing


def test_every_configuration_has_a_row_in_the_order_of_the_plan(standing: Standing) -> None:
    assert [(row.label, row.done, row.asked) for row in standing.rows] == [
        ("dp ×1, batch 8", 0, 2),
        ("ddp/gloo ×2, batch 8", 0, 2),
    ]
    assert states(standing) == ["queued", "queued"]
    assert (standing.done, standing.planned_in_all) == (0, 4)


def test_a_row_is_done_after_its_last_repetition(standing: Standing) -> None:
    standing.started(A)
    assert states(standing) == ["running", "queued"]
    standing.finished(run(A, 1000.0))
    assert states(standing) == ["queued", "queued"]
    standing.finished(run(again(A), 1000.0))
    assert states(standing) == ["done", "queued"]


def test_the_speed_is_the_geometric_mean_of_the_repetitions_so_far(standing: Standing) -> None:
    standing.finished(run(A, 1000.0))
    assert standing.rows[0].speed == pytest.approx(1000.0)
    standing.finished(run(again(A), 4000.0))
    assert standing.rows[0].speed == pytest.approx(2000.0)
    assert standing.rows[0].item == "images"


def test_one_failure_makes_a_row_failed_and_keeps_its_reason(standing: Standing) -> None:
    standing.finished(record(B, status=Status.OUT_OF_MEMORY, reason="rank 1 held 3 GiB"))
    assert states(standing) == ["queued", "failed"]
    standing.started(again(B))
    standing.finished(run(again(B), 1000.0))
    assert states(standing) == ["queued", "failed"]
    assert standing.rows[1].said == "out of memory: rank 1 held 3 GiB"


def test_what_is_skipped_says_so_from_the_first_time_on(standing: Standing) -> None:
    standing.finished(record(B, status=Status.SKIPPED, reason="nccl needs a GPU"))
    assert states(standing) == ["queued", "skipped"]


def test_a_plan_that_grows_asks_for_more_of_the_same_rows(standing: Standing) -> None:
    for spec in PALINDROME:
        standing.finished(run(spec, 1000.0))
    standing.planned([again(B, 2)])
    assert [(row.done, row.asked) for row in standing.rows] == [(2, 2), (2, 3)]
    assert (standing.done, standing.planned_in_all) == (4, 5)
    assert states(standing) == ["done", "queued"]


def test_the_time_left_shrinks_while_a_trial_runs_but_not_by_more_than_it_should_take(
    standing: Standing, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr(module, "monotonic", lambda: clock[0])
    standing.finished(run(A, 1000.0, duration_seconds=10.0))
    standing.started(B)
    assert standing.seconds_left() == 30.0
    clock[0] = 104.0
    assert (standing.elapsed_seconds(), standing.seconds_left()) == (4.0, 26.0)
    clock[0] = 150.0
    assert standing.seconds_left() == 20.0


def test_a_sweep_that_is_over_has_no_time_left(standing: Standing) -> None:
    standing.finished(run(A, 1000.0))
    standing.started(B)
    standing.over()
    assert standing.seconds_left() is None
    assert states(standing) == ["queued", "queued"]

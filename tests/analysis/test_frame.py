"""Tidy rows: what each level holds, against numbers worked by hand."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from dpbench.analysis.fields.levels import keys_of
from dpbench.analysis.frame import (
    collective_frame,
    rank_frame,
    rank_rows,
    step_frame,
    step_rows,
    trial_frame,
    trial_rows,
)
from dpbench.records.trial import Phases, Status, TrialRecord
from tests.analysis.builders import PASSED, WRONG, rank, record, trial, window


def two_ranks(**changes: object) -> TrialRecord:
    """Four steps of 0.1 s on rank 0 and of 0.2 s on rank 1, 16 samples each a step."""
    losses = [2.0, 1.8, 1.7, 1.5]
    phases = Phases(
        data_seconds=(0.01, 0.03),
        forward_seconds=(0.02,),
        backward_seconds=(0.03,),
        optimizer_seconds=(0.01,),
    )
    ranks = [
        rank(
            0,
            window([0.1] * 4, 64, losses),
            without_sync=window([0.05] * 4, 64, losses),
            phases=phases,
            peak_host_memory_bytes=100,
        ),
        rank(
            1,
            window([0.2] * 4, 64, losses),
            without_sync=window([0.1] * 4, 64, losses),
            peak_host_memory_bytes=300,
        ),
    ]
    return record(trial(group_size=2, batch_size=16), ranks, **{"verification": PASSED, **changes})


FAILED = record(trial(backend="nccl"), status=Status.FAILED, reason="rank 1 exited")


def test_a_trial_row_has_what_its_ranks_say_together() -> None:
    (row,) = trial_rows([two_ranks()])
    assert list(row) == [*keys_of("trial")]
    assert (row["implementation"], row["backend"], row["group_size"]) == ("ddp", "gloo", 2)
    assert row["samples"] == 128
    assert row["elapsed_seconds"] == pytest.approx(0.8)
    assert row["images_per_second"] == pytest.approx(160)
    assert row["exposed_communication_seconds"] == pytest.approx(0.1)
    assert (row["initial_loss"], row["final_loss"]) == (2.0, 1.5)
    assert (row["loss_delta"], row["loss_delta_per_step"]) == (0.5, 0.125)
    assert row["loss_delta_per_second"] == pytest.approx(0.625)
    # (0.1 - 0.05) ÷ 0.075 without synchronization; 300 ÷ ((100 + 300) ÷ 2).
    assert row["rank_skew"] == pytest.approx(2 / 3)
    assert (row["slowest_rank"], row["peak_memory_bytes"]) == (1, 300)
    assert row["memory_imbalance"] == 1.5
    assert row["verified"] is True


def test_only_a_completed_trial_has_a_speed() -> None:
    wrong, failed = trial_rows([two_ranks(verification=WRONG), FAILED])
    assert (wrong["status"], wrong["verified"]) == ("wrong_gradients", False)
    assert wrong["images_per_second"] is None
    assert wrong["final_loss"] is None
    assert (failed["status"], failed["reason"]) == ("failed", "rank 1 exited")
    assert failed["samples"] is None
    assert failed["verified"] is None


def test_a_loss_that_is_not_finite_is_missing_in_a_trial_and_kept_in_its_steps() -> None:
    spec = trial(timed_steps=2)
    diverged = record(spec, [rank(0, window([0.1, 0.1], 64, [1.0, math.inf]))])
    (row,) = trial_rows([diverged])
    assert row["final_loss"] is None
    assert [step["loss"] for step in step_rows([diverged])] == [1.0, math.inf]


def test_a_rank_row_has_the_means_of_its_own_steps() -> None:
    first, second = rank_rows([two_ranks(), FAILED])
    assert list(first) == [*keys_of("rank")]
    assert (first["rank"], second["rank"]) == (0, 1)
    assert first["step_seconds"] == pytest.approx(0.1)
    assert second["step_without_sync_seconds"] == pytest.approx(0.1)
    assert first["data_seconds"] == pytest.approx(0.02)
    assert second["data_seconds"] is None
    assert (first["peak_host_memory_bytes"], second["peak_host_memory_bytes"]) == (100, 300)


def test_a_step_row_for_every_step_of_every_window_of_every_rank() -> None:
    rows = list(step_rows([two_ranks(), FAILED]))
    assert list(rows[0]) == [*keys_of("step")]
    assert [(row["rank"], row["window"], row["step"]) for row in rows] == [
        (number, name, step)
        for number in (0, 1)
        for name in ("timed", "without_sync")
        for step in range(4)
    ]
    assert [row["seconds"] for row in rows] == [0.1] * 4 + [0.05] * 4 + [0.2] * 4 + [0.1] * 4
    assert {row["samples"] for row in rows} == {16}
    assert [row["loss"] for row in rows[:4]] == [2.0, 1.8, 1.7, 1.5]


def test_samples_that_do_not_divide_by_the_steps_are_missing() -> None:
    rows = step_rows([record(trial(), [rank(0, window([0.1, 0.1], 33))])])
    assert [(row["samples"], row["loss"]) for row in rows] == [(None, None)] * 2


def test_of_a_trial_that_was_run_again_the_last_record_counts() -> None:
    again = record(trial(group_size=2, batch_size=16), status=Status.TIMED_OUT)
    assert [row["status"] for row in trial_rows([two_ranks(), again])] == ["timed_out"]
    assert [row["status"] for row in trial_rows([again, two_ranks()])] == ["completed"]
    assert list(step_rows([two_ranks(), again])) == []


def test_the_frame_of_steps_is_the_rows() -> None:
    records = [
        two_ranks(),
        record(trial(repetition=1), [rank(0, window([0.3, 0.4], 33))]),
        FAILED,
    ]
    frame = step_frame(records)
    rows = list(step_rows(records))
    assert list(frame.columns) == [*keys_of("step")]
    assert len(frame) == len(rows) == 18
    for key in frame.columns:
        values = [None if pd.isna(value) else value for value in frame[key].astype(object)]
        assert values == [row[key] for row in rows], key
    assert str(frame["trial_id"].dtype) == "category"


def test_columns_keep_their_types_whatever_is_missing() -> None:
    for frame in (trial_frame([FAILED]), trial_frame([two_ranks()]), trial_frame([])):
        assert {str(frame[key].dtype) for key in ("samples", "slowest_rank")} == {"Int64"}
        assert str(frame["images_per_second"].dtype) == "float64"
        assert str(frame["verified"].dtype) == "boolean"
        assert str(frame["reason"].dtype) == "string"
    assert list(rank_frame([FAILED]).columns) == [*keys_of("rank")]
    assert len(step_frame([FAILED])) == 0
    assert len(collective_frame([])) == 0

"""Frames and tidy rows: what each level holds, against numbers worked by hand."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from dpbench.analysis.configuration import by_configuration
from dpbench.analysis.frames import (
    collective_frame,
    rank_frame,
    rank_rows,
    step_frame,
    step_rows,
    to_frame,
    trial_frame,
    trial_rows,
)
from dpbench.analysis.levels import LEVELS
from dpbench.analysis.summary import summarize
from dpbench.records.trial import Phases, Status, TrialRecord
from tests.analysis.builders import PASSED, rank, record, run, trial, window


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
            number,
            window([seconds] * 4, 64, losses),
            without_sync=window([seconds / 2] * 4, 64, losses),
            phases=None if number else phases,
            peak_host_memory_bytes=100 + 200 * number,
        )
        for number, seconds in enumerate((0.1, 0.2))
    ]
    return record(trial(group_size=2, batch_size=16), ranks, **{"verification": PASSED, **changes})


FAILED = record(trial(backend="nccl"), status=Status.FAILED, reason="rank 1 exited")
AGAIN = record(trial(group_size=2, batch_size=16), status=Status.TIMED_OUT)


def keys(level: str) -> list[str]:
    return [field.key for field in LEVELS[level]]


def test_a_configuration_has_a_row_of_its_values_and_intervals() -> None:
    frame = to_frame(summarize([run(trial(), 100.0), run(trial(group_size=2), 180.0)]))
    assert [*frame.columns] == keys("configuration")
    assert frame["speedup"].tolist() == pytest.approx([1.0, 1.8])
    assert [*to_frame(()).columns] == keys("configuration")


def test_a_rank_row_has_the_means_of_its_own_steps() -> None:
    first, second = rank_rows([two_ranks(), FAILED])
    assert [*first] == keys("rank")
    assert (first["rank"], second["rank"]) == (0, 1)
    assert first["step_seconds"] == pytest.approx(0.1)
    assert second["step_without_sync_seconds"] == pytest.approx(0.1)
    assert (first["data_seconds"], second["data_seconds"]) == (pytest.approx(0.02), None)
    assert (first["peak_host_memory_bytes"], second["peak_host_memory_bytes"]) == (100, 300)


def test_a_step_row_for_every_step_of_every_window_of_every_rank() -> None:
    rows = list(step_rows([two_ranks(), FAILED]))
    assert [*rows[0]] == keys("step")
    assert [(row["rank"], row["window"], row["step"]) for row in rows] == [
        (number, name, step)
        for number in (0, 1)
        for name in ("timed", "without_sync")
        for step in range(4)
    ]
    assert [row["seconds"] for row in rows] == [0.1] * 4 + [0.05] * 4 + [0.2] * 4 + [0.1] * 4
    assert {row["samples"] for row in rows} == {16}
    assert [row["loss"] for row in rows[:4]] == [2.0, 1.8, 1.7, 1.5]


def test_the_frame_of_steps_is_the_rows() -> None:
    diverged = window([0.3, 0.4], 33, [1.0, math.inf])
    records = [two_ranks(), record(trial(repetition=1), [rank(0, diverged)]), FAILED]
    frame, rows = step_frame(records), list(step_rows(records))
    assert [*frame.columns] == keys("step")
    assert len(frame) == len(rows) == 18
    # Samples that do not divide by the steps are missing; a loss that diverged is kept.
    assert (rows[-1]["samples"], rows[-1]["loss"]) == (None, math.inf)
    for key in frame.columns:
        values = [None if pd.isna(value) else value for value in frame[key].astype(object)]
        assert values == [row[key] for row in rows], key
    assert str(frame["trial_id"].dtype) == "category"


def test_the_last_record_of_a_trial_counts() -> None:
    assert by_configuration([two_ranks(), FAILED, AGAIN]) == {
        AGAIN.trial: [AGAIN],
        FAILED.trial: [FAILED],
    }
    assert [row["status"] for row in trial_rows([two_ranks(), AGAIN])] == ["timed_out"]
    assert [row["status"] for row in trial_rows([AGAIN, two_ranks()])] == ["completed"]
    assert list(step_rows([two_ranks(), AGAIN])) == []


def test_columns_keep_their_types_whatever_is_missing() -> None:
    for frame in (trial_frame([FAILED]), trial_frame([two_ranks()]), trial_frame([])):
        assert [*frame.columns] == keys("trial")
        assert {str(frame[key].dtype) for key in ("samples", "slowest_rank")} == {"Int64"}
        assert str(frame["images_per_second"].dtype) == "float64"
        assert str(frame["verified"].dtype) == "boolean"
        assert str(frame["reason"].dtype) == "string"
    assert [*rank_frame([FAILED]).columns] == keys("rank")
    assert len(step_frame([FAILED])) == 0
    assert len(collective_frame([])) == 0

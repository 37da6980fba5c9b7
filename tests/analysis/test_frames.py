"""Frames and tidy rows: what each level holds, against numbers worked by hand."""

from __future__ import annotations

import math

import pytest

from dpbench.analysis.frames import (
    TRIAL_COLUMNS,
    collective_frame,
    rank_frame,
    step_frame,
    trial_frame,
)
from dpbench.analysis.rows import summarize
from tests.analysis.builders import rank, record, run, trial, two_ranks, varied, window

FAILED = record(trial(backend="nccl"), reason="rank 1 exited", environment_ids=())


def test_a_rank_row_has_the_means_of_its_own_steps() -> None:
    frame = rank_frame([two_ranks(), FAILED])
    assert frame["rank"].tolist() == [0, 1]
    assert frame["step_seconds"].tolist() == pytest.approx([0.4 / 3, 0.2])
    assert frame["step_unsynced_seconds"].tolist() == pytest.approx([0.05, 0.1])
    assert frame["data_seconds"].tolist() == pytest.approx([0.02, math.nan], nan_ok=True)
    assert frame["peak_host_memory_bytes"].tolist() == [100, 300]
    assert [*rank_frame([FAILED]).columns] == [*frame.columns]


def test_a_step_row_for_every_step_of_every_window_of_every_rank() -> None:
    diverged = record(trial(), [rank(0, window([0.3, 0.4], 33, [1.0, math.inf]))], repetition=1)
    frame = step_frame([two_ranks(), diverged, FAILED])
    assert [*zip(frame["rank"], frame["window"], frame["step"], strict=True)][:12] == [
        (number, name, step)
        for number in (0, 1)
        for name in ("timed", "unsynced")
        for step in range(3)
    ]
    assert frame["seconds"].tolist()[:6] == [0.1, 0.2, 0.1, 0.05, 0.1, 0.0]
    assert frame["loss"].tolist()[:3] == [2.0, 1.5, 1.0]
    assert frame["loss"].iloc[-1] == math.inf
    assert frame["repetition"].tolist() == [0] * 12 + [1] * 2
    assert str(frame["trial_id"].dtype) == "category"
    assert [*step_frame([FAILED]).columns] == [*frame.columns]


def test_a_trial_is_called_as_its_row_is() -> None:
    records = [run(varied(trial(), architecture=name), 100.0) for name in ("mlp", "gpt")]
    rows = {row.configuration: row.label for row in summarize(records)}
    assert [*trial_frame(records)["label"]] == [rows[one.configuration] for one in records]
    assert len({*rows.values()}) == 2


def test_columns_keep_their_types_whatever_is_missing() -> None:
    for frame in (trial_frame([FAILED]), trial_frame([two_ranks()]), trial_frame([])):
        assert [*frame.columns] == [column.key for column in TRIAL_COLUMNS]
        assert {str(frame[key].dtype) for key in ("samples", "timed_steps")} == {"Int64"}
        assert str(frame["images_per_second"].dtype) == "float64"
        assert str(frame["verified"].dtype) == "boolean"
        assert str(frame["reason"].dtype) == "string"
    assert len(collective_frame([])) == 0

"""A trial in a line."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dpbench.records import Status, TrialRecord
from dpbench.report.progress.words import describe, left
from tests.analysis.builders import record, run, trial

A, B = trial("dp", "threads", batch_size=8), trial("ddp", "gloo", group_size=2, batch_size=8)
SKIPPED = record(B, status=Status.SKIPPED, reason="nccl needs a GPU", duration_seconds=0.0)


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
        (SKIPPED, "ddp/gloo ×2, batch 8, repetition 1: skipped: nccl needs a GPU"),
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

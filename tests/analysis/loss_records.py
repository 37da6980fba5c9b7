"""Records whose losses and seconds are given step by step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dpbench.records import TrialRecord
from tests.analysis.builders import rank, record, trial, window


def loss_run(
    losses: Sequence[float], *, step_seconds: float = 0.1, samples_per_step: int = 32, **spec: Any
) -> TrialRecord:
    """One rank with a constant step; `spec` changes the trial."""
    steps = len(losses)
    timed = window([step_seconds] * steps, samples_per_step * steps, losses)
    return record(trial(timed_steps=steps, **spec), [rank(0, timed)])

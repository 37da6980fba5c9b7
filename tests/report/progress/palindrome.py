"""A small sweep on its way: two configurations, there and back again."""

from __future__ import annotations

from dataclasses import replace

from dpbench.records.trial import Status, TrialRecord
from dpbench.specs import TrialSpec
from tests.analysis.builders import record, run, trial

A, B = trial("dp", "threads", batch_size=8), trial("ddp", "gloo", group_size=2, batch_size=8)


def again(spec: TrialSpec, repetition: int = 1) -> TrialSpec:
    return replace(spec, repetition=repetition)


PALINDROME = [A, B, again(B), again(A)]


def took(spec: TrialSpec, seconds: float) -> TrialRecord:
    """A completed trial of 1,000 images/s that lasted so long in all."""
    return run(spec, 1000.0, duration_seconds=seconds)


def skipped(spec: TrialSpec) -> TrialRecord:
    return record(spec, status=Status.SKIPPED, reason="nccl needs a GPU", duration_seconds=0.0)

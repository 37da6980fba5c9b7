"""Records by hand: a few numbers in, a whole TrialRecord out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dpbench.records import RankMeasurement, Status, TrialRecord, Verification, Window
from dpbench.specs import TrialSpec, WorkloadSpec

PASSED = Verification(passed=True, max_relative_error=1e-12, tolerance=1e-6, tensors_compared=8)
WRONG = Verification(
    passed=False,
    max_relative_error=0.25,
    tolerance=1e-6,
    tensors_compared=8,
    worst_parameter="conv1.weight",
)


def trial(
    implementation: str = "ddp",
    backend: str = "gloo",
    group_size: int = 1,
    batch_size: int = 32,
    **changes: Any,
) -> TrialSpec:
    values: dict[str, Any] = {
        "workload": WorkloadSpec(architecture="mnist_cnn", dataset="digits"),
        "implementation": implementation,
        "backend": backend,
        "group_size": group_size,
        "batch_size": batch_size,
        "warmup_steps": 2,
        "timed_steps": 4,
        "threads_per_replica": 1,
        "devices": ("cpu",) * group_size,
    }
    return TrialSpec(**{**values, **changes})


def window(step_seconds: Sequence[float], samples: int, losses: Sequence[float] = ()) -> Window:
    return Window(
        start_seconds=0.0,
        seconds=sum(step_seconds),
        step_seconds=tuple(step_seconds),
        samples=samples,
        losses=tuple(losses),
    )


def rank(number: int, timed: Window, **changes: Any) -> RankMeasurement:
    values: dict[str, Any] = {
        "rank": number,
        "pid": 100 + number,
        "device": "cpu",
        "timed": timed,
        "setup_seconds": 0.1,
    }
    return RankMeasurement(**{**values, **changes})


def record(spec: TrialSpec, ranks: Sequence[RankMeasurement] = (), **changes: Any) -> TrialRecord:
    values: dict[str, Any] = {
        "trial": spec,
        "environment_id": "e0",
        "started_utc": "2025-01-01T00:00:00.000Z",
        "duration_seconds": 1.0,
        "status": Status.COMPLETED if ranks else Status.FAILED,
        "item": "images",
        "ranks": tuple(ranks),
    }
    return TrialRecord(**{**values, **changes})


def run(
    spec: TrialSpec,
    throughput: float,
    *,
    losses: Sequence[float] = (2.0, 1.8, 1.7, 1.5),
    without_sync: float | None = None,
    **changes: Any,
) -> TrialRecord:
    """A completed trial of equal steps with exactly this throughput on every rank together.

    `without_sync` is the step time in seconds without gradient synchronization.
    """
    per_rank = spec.batch_size * spec.timed_steps
    step = per_rank * spec.group_size / throughput / spec.timed_steps
    ranks = [
        rank(
            number,
            window((step,) * spec.timed_steps, per_rank, losses),
            without_sync=None
            if without_sync is None
            else window((without_sync,) * spec.timed_steps, per_rank),
            peak_host_memory_bytes=300 * 2**20 + number,
        )
        for number in range(spec.group_size)
    ]
    return record(spec, ranks, **{"verification": PASSED, **changes})

"""A launcher that starts nothing and answers at once, for testing everything above it.

Step times follow a fixed cost model with seeded noise, so plans, stores, statistics, tables and
charts can be exercised through the real command line in milliseconds. Its environment is named
"synthetic", and every report says so.
"""

from __future__ import annotations

import random

from dpbench.launch.launcher import Outcome
from dpbench.records import RankMeasurement, Status, Verification, Window
from dpbench.specs import IMPLEMENTATIONS, TrialSpec

SECONDS_PER_SAMPLE = 1e-4
SECONDS_PER_STEP = 2e-3
COMMUNICATION_SECONDS = {"gloo": 3e-3, "nccl": 3e-4, "shm": 5e-4, "threads": 1e-3, "none": 0.0}
NOISE = 0.01


class SyntheticLauncher:
    """Answers with the cost model; every trial completes."""

    def unusable_reason(self, trial: TrialSpec) -> str | None:
        return None

    def run(self, trial: TrialSpec, time_limit_seconds: float) -> Outcome:
        ranks = tuple(_rank(trial, rank) for rank in range(trial.process_count))
        verified = Verification(
            passed=True, max_relative_error=0.0, tolerance=1e-10, tensors_compared=1
        )
        return Outcome(status=Status.COMPLETED, item="images", ranks=ranks, verification=verified)


def _rank(trial: TrialSpec, rank: int) -> RankMeasurement:
    noise = random.Random(f"{trial.trial_id}/{rank}")
    samples = max(trial.replica_batch_sizes) * trial.accumulation_steps
    compute = SECONDS_PER_STEP + SECONDS_PER_SAMPLE * samples
    exposed = COMMUNICATION_SECONDS[trial.backend] * (trial.group_size - 1) / trial.group_size
    two_windows = IMPLEMENTATIONS[trial.implementation].can_leave_out_sync
    return RankMeasurement(
        rank=rank,
        pid=0,
        device=trial.devices[rank],
        timed=_window(trial, rank, compute + exposed, noise),
        without_sync=_window(trial, rank, compute, noise) if two_windows else None,
        setup_seconds=0.0,
        peak_host_memory_bytes=2**28,
        warmup_steps=trial.warmup_steps,
        timed_steps=trial.timed_steps,
    )


def _window(trial: TrialSpec, rank: int, seconds: float, noise: random.Random) -> Window:
    steps = tuple(seconds * noise.uniform(1 - NOISE, 1 + NOISE) for _ in range(trial.timed_steps))
    _, samples = trial.process_shard(rank)
    return Window(
        start_seconds=0.0,
        seconds=sum(steps),
        step_seconds=steps,
        samples=samples * trial.accumulation_steps * trial.timed_steps,
        losses=tuple(2.3 * 0.99**step for step in range(trial.timed_steps)),
    )

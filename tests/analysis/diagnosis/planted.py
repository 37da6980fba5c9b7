"""Synthetic sweeps with a planted cause: two ranks whose steps and runs vary by 5 %."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from dpbench.records.trial import Phases, TrialRecord
from tests.analysis.builders import PASSED, rank, record, trial, window

Cause = Literal["straggler", "loader", "loaders", "wrapper", "first steps", "pauses"]
CAUSES: tuple[Cause, ...] = get_args(Cause)
KINDS = {
    "straggler": "waiting",
    "loader": "data",
    "loaders": "data",
    "wrapper": "wrapper",
    "first steps": "warm-up",
    "pauses": "slow steps",
}
"""What the largest advice has to be."""
STEP, NOISE, STEPS, REPETITIONS = 0.010, 0.05, 50, 4
COMMUNICATION = 0.001
Steps = NDArray[np.float64]


@dataclass
class Planted:
    """A sweep of `single`, `independent` and `ddp` with one cause, of a random size."""

    cause: Cause
    seed: int

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.size = float(self.rng.uniform(0.3, 1.0))
        self.slow_rank = int(self.rng.integers(2))

    def records(self) -> list[TrialRecord]:
        found = []
        for repetition in range(REPETITIONS):
            found.append(self._record("single", repetition, self._steps(1, "single")))
            found.append(self._record("independent", repetition, self._steps(2, "independent")))
            alone, other = self._steps(2, "ddp"), self._steps(2, "ddp")
            together = np.tile(other.max(axis=0) + COMMUNICATION, (2, 1))
            if self.cause == "first steps":
                together[:, : STEPS // 10] *= 1 + 10 * self.size
            found.append(self._record("ddp", repetition, together, alone))
        return found

    def _steps(self, ranks: int, implementation: str) -> Steps:
        """Seconds of (ranks, steps), with noise of each step and of the run."""
        shape = (ranks, STEPS)
        steps = STEP * np.exp(NOISE * self.rng.normal(size=shape))
        steps *= np.exp(NOISE * self.rng.normal())
        extra = self.size * STEP
        if self.cause in ("straggler", "loader") and ranks == 2:
            steps[self.slow_rank] += extra
        if self.cause == "loaders":
            steps += extra
        if self.cause == "wrapper" and implementation == "ddp":
            steps += extra
        if self.cause == "pauses" and implementation == "ddp":
            steps += 5 * extra * (self.rng.random(shape) < 0.1)
        return steps

    def _record(
        self, name: str, repetition: int, timed: Steps, alone: Steps | None = None
    ) -> TrialRecord:
        count = len(timed)
        data = [0.0002] * count
        if self.cause == "loader" and count == 2:
            data[self.slow_rank] += self.size * STEP
        if self.cause == "loaders":
            data = [seconds + self.size * STEP for seconds in data]
        changes: dict[str, Any] = {"group_size": count, "repetition": repetition}
        spec = trial(name, "gloo" if name == "ddp" else "none", timed_steps=STEPS, **changes)
        ranks = [
            rank(
                number,
                window(timed[number].tolist(), 32 * STEPS),
                without_sync=None if alone is None else window(alone[number].tolist(), 32 * STEPS),
                phases=Phases(
                    data_seconds=(data[number],) * 5,
                    forward_seconds=(0.003,) * 5,
                    backward_seconds=(0.006,) * 5,
                    optimizer_seconds=(0.001,) * 5,
                ),
            )
            for number in range(count)
        ]
        return record(spec, ranks, verification=PASSED)

"""Steps that take far longer than the others, now and then: a pause of the model or the machine.

They make a mean noisy and hide in every factor, so they are looked for in the steps themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpbench import units
from dpbench.analysis.estimate import Estimate, mean
from dpbench.analysis.steps import outlier_limit
from dpbench.analysis.throughput import step_seconds
from dpbench.records.trial import TrialRecord


@dataclass(frozen=True, kw_only=True, slots=True)
class SlowSteps:
    """The slow steps of a configuration; its first steps are left out."""

    every: float
    """One step in so many is slow."""
    extra_seconds: float
    """Seconds by which a slow step exceeds the median step."""
    share: Estimate
    """Share of all steps' seconds that would be saved if slow steps were like the median."""

    @property
    def text(self) -> str:
        """Writes "rare slow steps (1 in 10, 40 ms longer than the others)"."""
        longer = units.seconds(float(f"{self.extra_seconds:.2g}"))
        return f"rare slow steps (1 in {self.every:.0f}, {longer} longer than the others)"


def slow_steps(records: Sequence[TrialRecord], skipped: int = 0) -> SlowSteps | None:
    """The slow steps of the usable repetitions of one configuration; None if there are none.

    Args:
        skipped: first steps of each window that are left out, as they are slow for another reason.
    """
    windows = [step_seconds(record)[skipped:] for record in records]
    extra = [steps[steps > outlier_limit(steps)] - np.median(steps) for steps in windows]
    count = sum(map(len, extra))
    if not count:
        return None
    shares = [float(more.sum() / steps.sum()) for more, steps in zip(extra, windows, strict=True)]
    return SlowSteps(
        every=sum(map(len, windows)) / count,
        extra_seconds=float(np.concatenate(extra).mean()),
        share=mean(shares, unit="of the step"),
    )

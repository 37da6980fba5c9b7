"""Statistics of the single steps of timed windows, for diagnosis: nothing is dropped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpbench.analysis.estimate import Floats
from dpbench.analysis.warm_up import WarmUp, warm_up
from dpbench.records.trial import RankMeasurement, TrialRecord
from dpbench.units import CLOCK_SECONDS

OUTLIER_DEVIATIONS = 14.826
"""Median absolute deviations above the median from which a step is an outlier: ten standard
deviations of normal noise, as in hyperfine."""
FEWEST_STEPS = 10
"""Fewest steps for outliers: with fewer, the median deviation rests on two or three of them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepSummary:
    """All timed steps of a configuration's repetitions together."""

    p50_seconds: float
    p95_seconds: float
    warm_up: WarmUp | None


def summarize_steps(windows: Sequence[Floats]) -> StepSummary:
    """Pool the windows of one configuration; quantiles are over all its steps."""
    p50, p95 = np.percentile(np.concatenate(windows), (50, 95)).tolist()
    return StepSummary(p50_seconds=p50, p95_seconds=p95, warm_up=warm_up(windows))


def outlier_limit(steps: Floats) -> float:
    """Seconds above which a step is an outlier; infinite for too few steps."""
    if len(steps) < FEWEST_STEPS:
        return np.inf
    median = np.median(steps)
    deviation = np.median(np.abs(steps - median))
    return float(median + OUTLIER_DEVIATIONS * deviation + CLOCK_SECONDS)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RankSteps:
    """Arrays of seconds, one value per step."""

    rank: int
    timed: Floats
    """Steps with synchronization: in them fast ranks wait for slow ones."""
    alone: Floats | None
    """Steps without synchronization; None if a repetition lacks them."""
    outliers: Floats
    """The timed steps that are outliers in the rank's own window."""


def rank_steps(records: Sequence[TrialRecord]) -> tuple[RankSteps, ...]:
    """Steps of each rank, from at least one measured record."""
    by_rank: dict[int, list[RankMeasurement]] = {}
    for record in records:
        for measured in record.ranks:
            by_rank.setdefault(measured.rank, []).append(measured)
    found = []
    for rank, each in sorted(by_rank.items()):
        windows = [np.array(one.timed.step_seconds) for one in each]
        without = [one.without_sync.step_seconds for one in each if one.without_sync]
        found.append(
            RankSteps(
                rank=rank,
                timed=np.concatenate(windows),
                alone=np.concatenate([np.array(steps) for steps in without])
                if len(without) == len(each) and all(without)
                else None,
                outliers=np.concatenate([one[one > outlier_limit(one)] for one in windows]),
            )
        )
    return tuple(found)

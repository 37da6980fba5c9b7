"""The steps of each rank of a configuration, all repetitions together: who waits, and for whom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpbench.analysis.steady_state import Floats
from dpbench.analysis.steps import outlier_limits
from dpbench.records import RankMeasurement, TrialRecord, Window


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RankSteps:
    """Arrays of seconds, a value a step."""

    rank: int
    timed: Floats
    """With synchronization: the fast ranks wait in them for the slow ones."""
    alone: Floats | None
    """Without synchronization; None where a repetition lacks it."""
    outliers: Floats
    """Those of the timed ones that are, among the steps of the rank's own window."""


def rank_steps(records: Sequence[TrialRecord]) -> tuple[RankSteps, ...]:
    """One for each rank; of at least one record that is measured."""
    by_rank: dict[int, list[RankMeasurement]] = {}
    for record in records:
        for measured in record.ranks:
            by_rank.setdefault(measured.rank, []).append(measured)
    return tuple(_rank_steps(rank, measured) for rank, measured in sorted(by_rank.items()))


def _rank_steps(rank: int, measured: Sequence[RankMeasurement]) -> RankSteps:
    windows = [np.array(one.timed.step_seconds) for one in measured]
    without = [one.without_sync for one in measured if _has_steps(one.without_sync)]
    return RankSteps(
        rank=rank,
        timed=np.concatenate(windows),
        alone=np.concatenate([window.step_seconds for window in without if window])
        if len(without) == len(measured)
        else None,
        outliers=np.concatenate([one[one > outlier_limits(one[None])] for one in windows]),
    )


def _has_steps(window: Window | None) -> bool:
    return window is not None and bool(window.step_seconds)

"""Runs of one configuration that fall into two groups: their mean belongs to neither.

Memory placement, two clock speeds, or another job on the machine can make some runs faster by a
fixed amount. A t interval assumes roughly normal runs; for two groups its coverage is right only
with many runs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

FEWEST_RUNS = 4
"""Fewest runs: two in each group, as a single one is an outlier."""
SMALLEST_GAP = 0.03
"""Smallest relative gap between the speeds of the groups that matters."""
GAP_OF_FEWEST, FALL, LEAST_GAP = 8.0, 1.6, 1.5
"""Gap between the groups ÷ the wider of them: at 4 runs, how fast the limit falls with more of
them, and where it stops. Chance leaves smaller gaps among more runs, and groups of more runs are
wider, so that one limit for all would miss what many runs show best. About 1 % of normal runs have
such a gap, whether 4 or 20 of them (seeded test)."""


def two_modes(speeds: Sequence[float]) -> tuple[float, float] | None:
    """Mean speeds of the slower and of the faster group; None if runs form one group."""
    if len(speeds) < FEWEST_RUNS:
        return None
    ordered = np.sort(np.asarray(speeds, dtype=np.float64))
    splits = range(2, len(ordered) - 1)
    split = max(splits, key=lambda place: ordered[place] - ordered[place - 1])
    low, high = ordered[:split], ordered[split:]
    gap = high[0] - low[-1]
    widest = max(np.ptp(low), np.ptp(high))
    if gap < SMALLEST_GAP * ordered.mean() or gap < _limit(len(ordered)) * widest:
        return None
    return float(low.mean()), float(high.mean())


def _limit(count: int) -> float:
    chance: float = GAP_OF_FEWEST * (FEWEST_RUNS / count) ** FALL
    return max(LEAST_GAP, chance)

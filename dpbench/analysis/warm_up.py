"""Whether the timed windows of a configuration begin with slow steps.

The first steps of a window are compared with the rest: ln(median of the first tenth or fifth ÷
median of the rest), a value for each repetition, with a t test over the repetitions. Medians are
not moved by single slow steps. Repetitions are independent, which the steps of one window are not.

In simulation (50 steps that vary by 5 %, 4 repetitions), steady windows are flagged in at most 5 %,
also where steps are correlated or have spikes; five first steps ten times as slow are found in
100 %, and five first steps that take 50 % longer in at least 90 %. Nothing is dropped: throughput
stays that of the whole window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpbench.analysis.estimate import CONFIDENCE, Floats, t_quantile

FEWEST_STEPS = 20
"""Fewest steps that can be judged: a tenth has to hold two."""
FRACTIONS = (10, 5)
"""The first steps are a tenth and a fifth of the window: a short and a long warm-up."""
SMALLEST_EFFECT = 0.01
"""Smallest part of the window's seconds that matters: a fifth of the steps that take 3 % longer
cost 0.6 %, which is not worth more warm-up steps."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WarmUp:
    """Slow steps at the start of a configuration's windows."""

    steps: int
    change: float
    """Median of these steps ÷ median of the rest - 1."""


def warm_up(windows: Sequence[Floats]) -> WarmUp | None:
    """Judge the windows of one configuration, one array of step seconds per repetition.

    None if they do not begin with slow steps, are short, or are of a single repetition.
    """
    length = min(map(len, windows))
    if length < FEWEST_STEPS or len(windows) < 2:
        return None
    # Two tests, at half the level each.
    quantile = t_quantile(len(windows) - 1, 1 - (1 - CONFIDENCE) / len(FRACTIONS))
    found = []
    for fraction in FRACTIONS:
        first = length // fraction
        logs = np.log([np.median(window[:first]) / np.median(window[first:]) for window in windows])
        error = float(logs.std(ddof=1)) / len(logs) ** 0.5
        change = float(logs.mean())
        if change > quantile * error and change * first >= SMALLEST_EFFECT * length:
            found.append((change, first))
    if not found:
        return None
    change, first = max(found)
    return WarmUp(steps=first, change=float(np.expm1(change)))

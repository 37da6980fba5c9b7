"""Single steps of timed windows, for diagnosis: slow first steps, steps that are slow now and then,
and the steps of each rank. Nothing is dropped: throughput stays that of the whole window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpbench import units
from dpbench.analysis.estimate import CONFIDENCE, Estimate, Floats, mean, t_quantile
from dpbench.analysis.throughput import step_seconds
from dpbench.records.trial import TrialRecord
from dpbench.units import CLOCK_SECONDS

OUTLIER_DEVIATIONS = 14.826
"""Median absolute deviations above the median from which a step is an outlier: ten standard
deviations of normal noise, as in hyperfine."""
FEWEST_FOR_OUTLIERS = 10
"""Fewest steps for outliers: with fewer, the median deviation rests on two or three of them."""
FEWEST_FOR_WARM_UP = 20
"""Fewest steps whose first ones can be judged: a tenth has to hold two."""
FEW_FIRST = 5
FRACTIONS = (10, 5)
"""The first steps are a few, a tenth and a fifth of the window: short and long warm-ups."""
SMALLEST_EFFECT = 0.01
"""Smallest part of the window's seconds that matters: a fifth of the steps that take 3 % longer
cost 0.6 %, which is not worth more warm-up steps."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WarmUp:
    """Slow steps at the start of a configuration's windows."""

    steps: int
    change: float
    """Median of these steps ÷ median of the rest - 1."""
    share: Estimate
    """Share of all steps' seconds that would be saved if they were like the rest."""


def warm_up(windows: Sequence[Floats]) -> WarmUp | None:
    """Whether the timed windows of a configuration begin with slow steps; `windows` has an array of
    step seconds for each repetition.

    The first steps of a window are compared with the rest: ln(median of the first ones ÷ median of
    the rest), a value for each repetition, with a t test over the repetitions. Medians
    are not moved by single slow steps. Repetitions are independent, which the steps of one window
    are not.

    In simulation (50 steps that vary by 5 %, 4 repetitions), steady windows are flagged in at most
    5 %, also where steps are correlated or have spikes; five first steps ten times as slow are
    found in 100 %, and five first steps that take 50 % longer in at least 90 %.

    Returns:
        None if the windows do not begin with slow steps, are short, or are of one repetition.
    """
    length = min(map(len, windows))
    if length < FEWEST_FOR_WARM_UP or len(windows) < 2:
        return None
    tried = {length // fraction for fraction in FRACTIONS}
    tried |= {FEW_FIRST} if max(tried) > FEW_FIRST else set()
    # Two or three tests, which share the level.
    quantile = t_quantile(len(windows) - 1, 1 - (1 - CONFIDENCE) / len(tried))
    found = []
    for first in sorted(tried):
        logs = np.log([np.median(window[:first]) / np.median(window[first:]) for window in windows])
        error = float(logs.std(ddof=1)) / len(logs) ** 0.5
        change = float(logs.mean())
        if change > quantile * error and change * first >= SMALLEST_EFFECT * length:
            found.append((change, first))
    if not found:
        return None
    change, first = max(found)
    # Further steps that are nearer to these than to the rest belong to them.
    ratios = np.median([one[:length] / np.median(one[first:]) for one in windows], axis=0)
    steps = max(first, int(np.argmin(ratios > np.exp(change / 2))))
    lost = [1 - float(one[steps:].mean() / one.mean()) for one in windows]
    share = mean(lost, unit="of the step")
    return WarmUp(steps=steps, change=float(np.expm1(change)), share=share)


def outlier_limit(steps: Floats) -> float:
    """Seconds above which a step is an outlier; infinite for too few steps."""
    if len(steps) < FEWEST_FOR_OUTLIERS:
        return np.inf
    median = np.median(steps)
    deviation = np.median(np.abs(steps - median))
    return float(median + OUTLIER_DEVIATIONS * deviation + CLOCK_SECONDS)


@dataclass(frozen=True, kw_only=True, slots=True)
class SlowSteps:
    """Steps that take far longer than the others, now and then: a pause of the model or the
    machine. They make a mean noisy and hide in every factor."""

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

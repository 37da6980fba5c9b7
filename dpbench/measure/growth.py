"""When a timed window of variable length is long enough.

The mean step has a confidence interval from 20 batch means, and the window ends when that is narrow
enough. Checking after every step would stop at lucky moments, so it is checked only at sizes a
factor 1.5 apart, from 100 steps on: a nominal 95 % interval then keeps a coverage of 0.92 to 0.94
for steps with a first-order autocorrelation of up to 0.8, against 0.86 to 0.90 if checked every 5 %
from 20 steps on.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import fmean, stdev

BATCHES = 20
LEAST_STEPS = 100
GROWTH = 1.5
T_QUANTILE = 2.0930240544
"""Half-width of a two-sided 95 % t interval in standard errors, at 19 degrees of freedom."""


def checkpoints(most: int, period: int = 1) -> Iterator[int]:
    """Numbers of steps after which to check, the last being `most`.

    All others are whole batches of whole periods, where `period` is the number of steps between two
    parameter averages: 100, 160, 240, 360, … for a period of 1.
    """
    unit = BATCHES * period
    steps = _round_up(LEAST_STEPS, unit)
    while steps < most:
        yield steps
        steps = _round_up(GROWTH * steps, unit)
    yield most


def relative_half_width(step_seconds: Sequence[float]) -> float:
    """Half-width of the 95 % interval of the mean step ÷ that mean, from equal batches."""
    size = len(step_seconds) // BATCHES
    means = [fmean(step_seconds[i * size : (i + 1) * size]) for i in range(BATCHES)]
    return T_QUANTILE * stdev(means) / math.sqrt(BATCHES) / fmean(means)


def _round_up(steps: float, unit: int) -> int:
    return math.ceil(steps / unit) * unit

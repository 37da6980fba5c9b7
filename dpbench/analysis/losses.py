"""Losses of a run: per step, as a smooth curve over seconds, and how fast they fall.

The slope uses every timed step, and its interval is that of the noise of the losses. Repetitions
share a seed and so a curve: they are one sample, and the first one stands for all. The deltas of
the original benchmark compare two single batches; they stay under their names, without an interval.
Rates are comparable only at the same level of the loss: any curve is steeper at its start.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dpbench.analysis.estimate import Estimate, Floats, product
from dpbench.analysis.throughput import items, slowest_of_each_step
from dpbench.records.trial import TrialRecord

MAX_LOSS = float(np.finfo(np.float32).max)
CURVE_BLOCKS = 100
TRAILING_BLOCKS = 5
SLOPE_BLOCKS = ((100, 20), (20, 10), (12, 6))
"""(Fewest steps, number of blocks): for that many steps, this number of blocks, or a few more.

The interval of a Theil-Sen slope assumes independent points. At an autocorrelation of 0.5 and 400
steps, 20 blocks cover 0.94 and 100 blocks 0.90; of 100 steps, 20 blocks 0.93 and 100 single steps
0.76; of 12 steps, 6 blocks 0.97.
"""
MIN_SLOPE_STEPS, _ = SLOPE_BLOCKS[-1]
"""Fewer steps have a slope without an interval."""


def finite_losses(record: TrialRecord) -> tuple[float, ...]:
    """Loss of every timed step: the mean over ranks, weighted by the samples they consumed.

    Empty unless all ranks recorded as many, and single precision can hold all of them.
    """
    windows = [rank.timed for rank in record.ranks if rank.timed.samples > 0]
    if len({len(window.losses) for window in windows}) != 1:
        return ()
    weights = np.array([window.samples for window in windows], dtype=np.float64)
    # A diverged loss may be infinite on one rank only: that is a result, not an error.
    with np.errstate(invalid="ignore"):
        per_step = (weights / weights.sum()) @ np.array([window.losses for window in windows])
    return tuple(per_step.tolist()) if bool((np.abs(per_step) <= MAX_LOSS).all()) else ()


def loss_curve(record: TrialRecord) -> tuple[Floats, Floats] | None:
    """(Seconds of the slowest rank, smoothed loss) at the end of each block of a measured run;
    None unless every step has a finite loss."""
    per_step = finite_losses(record)
    slowest = max((rank.timed for rank in record.ranks), key=lambda window: window.seconds)
    steps = len(slowest.step_seconds)
    if not per_step or len(per_step) != steps:
        return None
    length = max(1, steps // CURVE_BLOCKS)
    medians = _block_medians(per_step, length)
    ends = length * np.arange(1, len(medians) + 1)
    trailing = [medians[max(0, i - TRAILING_BLOCKS) : i].mean() for i in range(1, len(medians) + 1)]
    return np.cumsum(slowest.step_seconds)[ends - 1], np.array(trailing)


def loss_slope_per_second(
    usable: Sequence[TrialRecord], throughput: Estimate | None
) -> Estimate | None:
    """Loss reduction per second at this throughput; None if no repetition has two losses."""
    run = next((run for record in usable if len(run := finite_losses(record)) > 1), None)
    if run is None or throughput is None:
        return None
    items_per_step = items(usable[0]) / len(slowest_of_each_step(usable[0]))
    steps_per_second = throughput.scaled(1 / items_per_step, unit="steps/s")
    return product(loss_slope(run), steps_per_second, unit="per s")


def loss_slope(run: Sequence[float]) -> Estimate:
    """Loss reduction per step of two losses or more: minus the Theil-Sen slope over medians of
    blocks, with Kendall's interval from the noise between blocks."""
    from scipy.stats import theilslopes  # half a second, which only losses need

    # No blocks, and no interval, for fewer steps.
    count = next((blocks for least, blocks in SLOPE_BLOCKS if len(run) >= least), 0)
    length = len(run) // (count or len(run))
    medians = _block_medians(run, length)
    slope, _, low, high = (float(value) / length for value in theilslopes(medians))
    return Estimate(
        value=-slope,
        low=-high if count else None,
        high=-low if count else None,
        unit="per step",
        sample_size=len(medians) if count else 1,
        basis="step batches" if count else "single value",
    )


def _block_medians(per_step: Sequence[float], length: int) -> Floats:
    """Medians of consecutive blocks of `length` steps; an incomplete last block is left out."""
    count = len(per_step) // length
    blocks = np.asarray(per_step[: count * length], dtype=np.float64).reshape(count, length)
    medians: Floats = np.median(blocks, axis=1)
    return medians

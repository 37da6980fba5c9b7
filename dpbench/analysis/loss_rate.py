"""How fast the loss falls: its robust slope per step, and per second.

Unlike the deltas of `convergence`, which compare two single batches, the slope uses every step. Per
second it is the same number times steps/s, so what an implementation gains in speed and what it
loses in progress stand apart. Rates compare at the same level of the loss only: any curve is
steeper at its start.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dpbench.analysis import throughput
from dpbench.analysis.convergence import is_finite, losses
from dpbench.analysis.estimate import CONFIDENCE, Estimate, mean
from dpbench.analysis.loss_agreement import are_one_sample
from dpbench.analysis.loss_curve import block_medians
from dpbench.analysis.propagation import product
from dpbench.analysis.steady_state import theil_sen
from dpbench.records import TrialRecord

BLOCKS = ((100, 20), (20, 10))
"""At least so many steps: so many blocks, or a few more.

The interval of a Theil-Sen slope takes its points as independent. At an autocorrelation of 0.5 and
400 steps, 20 blocks cover 0.94 and 100 blocks 0.90; of 100 steps, 20 blocks 0.93 and 100 single
steps 0.76. Fewer steps than 20 have a slope without an interval.
"""


def loss_slope(per_step: Sequence[float]) -> Estimate:
    """Loss reduction per step: minus the Theil-Sen slope over medians of blocks; of one run.

    Takes at least two finite losses. The interval is Kendall's, from the noise between blocks.
    """
    steps = len(per_step)
    count = next((blocks for least, blocks in BLOCKS if steps >= least), steps)
    length = steps // count
    medians = block_medians(per_step, length)
    slope, low, high = (float(v[0]) / length for v in theil_sen(medians[np.newaxis], CONFIDENCE))
    known = steps >= BLOCKS[-1][0]
    return Estimate(
        value=-slope,
        low=-high if known else None,
        high=-low if known else None,
        unit="per step",
        sample_size=len(medians) if known else 1,
        basis="step batches" if known else "single value",
    )


def loss_slope_per_step(records: Sequence[TrialRecord]) -> Estimate | None:
    """Over the repetitions of a configuration; None if none has two finite losses.

    By t over repetitions, unless all of them follow the same curve, as they do with the same seed:
    then they are one sample of the noise, and the interval is that within a run.
    """
    curves = [curve for curve in map(losses, records) if len(curve) > 1 and is_finite(curve)]
    if not curves:
        return None
    if len(curves) == 1 or are_one_sample(curves):
        return loss_slope(curves[0])
    return mean([loss_slope(curve).value for curve in curves], unit="per step")


def loss_slope_per_second(records: Sequence[TrialRecord]) -> Estimate | None:
    """Loss reduction per step times steps per second; takes measured records."""
    per_step = loss_slope_per_step(records)
    if per_step is None:
        return None
    first = records[0]
    samples = sum(rank.timed.samples for rank in first.ranks)
    steps = len(throughput.step_seconds(first))
    speed = throughput.throughput_mean(records).estimate("samples/s")
    return product(per_step, speed.scaled(steps / samples, unit="steps/s"), unit="per s")

"""How fast the loss falls: its robust slope per step, and per second.

Unlike the deltas of `convergence`, which compare two single batches, the slope uses every step. Per
second it is the same number times steps/s, so what an implementation gains in speed and what it
loses in progress stand apart. Rates compare at the same level of the loss only: any curve is
steeper at its start.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dpbench.analysis.estimate import CONFIDENCE, Estimate, mean
from dpbench.analysis.loss_agreement import are_one_sample
from dpbench.analysis.loss_curve import block_medians
from dpbench.analysis.propagation import product
from dpbench.analysis.steady_state import theil_sen

BLOCKS = ((100, 20), (20, 10))
"""At least so many steps: so many blocks, or a few more.

The interval of a Theil-Sen slope takes its points as independent. At an autocorrelation of 0.5 and
400 steps, 20 blocks cover 0.94 and 100 blocks 0.90; of 100 steps, 20 blocks 0.93 and 100 single
steps 0.76. Fewer steps than 20 have a slope without an interval.
"""


def loss_slopes(runs: Sequence[Sequence[float]]) -> list[Estimate]:
    """Loss reduction per step of each run: minus the Theil-Sen slope over medians of blocks.

    Takes runs of at least two finite losses; those of equal length at once, as one call costs
    0.4 ms. The interval is Kendall's, from the noise between blocks.
    """
    found: dict[int, Estimate] = {}
    by_steps: dict[int, list[int]] = {}
    for number, per_step in enumerate(runs):
        by_steps.setdefault(len(per_step), []).append(number)
    for steps, numbers in by_steps.items():
        count = next((blocks for least, blocks in BLOCKS if steps >= least), steps)
        length = steps // count
        medians = np.array([block_medians(runs[number], length) for number in numbers])
        columns = zip(*theil_sen(medians, CONFIDENCE), strict=True)
        known = steps >= BLOCKS[-1][0]
        for number, ends in zip(numbers, columns, strict=True):
            slope, low, high = (float(end) / length for end in ends)
            found[number] = Estimate(
                value=-slope,
                low=-high if known else None,
                high=-low if known else None,
                unit="per step",
                sample_size=medians.shape[1] if known else 1,
                basis="step batches" if known else "single value",
            )
    return [found[number] for number in range(len(runs))]


def slopes_over_repetitions(
    configurations: Sequence[Sequence[Sequence[float]]],
) -> list[Estimate | None]:
    """Loss reduction per step of each configuration, from the finite losses of its repetitions.

    By t over repetitions, unless all of them follow the same curve, as they do with the same seed:
    then they are one sample of the noise, and the interval is that within a run. None where no
    repetition has two losses.
    """
    usable = [[run for run in runs if len(run) > 1] for runs in configurations]
    samples = [runs[:1] if runs and are_one_sample(runs) else runs for runs in usable]
    each = iter(loss_slopes([run for runs in samples for run in runs]))
    slopes = [[next(each) for _ in runs] for runs in samples]
    return [
        mean([slope.value for slope in own], unit="per step")
        if len(own) > 1
        else next(iter(own), None)
        for own in slopes
    ]


def loss_slope_per_second(
    per_step: Estimate, throughput: Estimate, samples_per_step: float
) -> Estimate:
    """Loss reduction per step times steps per second, from throughput in samples per second."""
    steps_per_second = throughput.scaled(1 / samples_per_step, unit="steps/s")
    return product(per_step, steps_per_second, unit="per s")

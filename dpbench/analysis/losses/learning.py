"""How fast each configuration learns: the robust slope of its losses, per step and per second.

The slope uses every timed step, and its interval is that of the noise of the losses. The deltas of
the original benchmark compare two single batches, which repetitions of one seed share: they stay
under their names, without an interval. Rates are comparable only at the same level of the loss: any
curve is steeper at its start.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dpbench import units
from dpbench.analysis import throughput
from dpbench.analysis.estimate import Estimate, mean, product
from dpbench.analysis.losses.loss_curve import (
    are_one_sample,
    block_medians,
    is_finite,
    losses,
)
from dpbench.analysis.metrics import DECLARED
from dpbench.records.trial import TrialRecord

SLOPE_BLOCKS = ((100, 20), (20, 10))
"""(Fewest steps, number of blocks): for that many steps, this number of blocks, or a few more.

The interval of a Theil-Sen slope assumes independent points. At an autocorrelation of 0.5 and 400
steps, 20 blocks cover 0.94 and 100 blocks 0.90; of 100 steps, 20 blocks 0.93 and 100 single steps
0.76. Fewer steps than 20 have a slope without an interval.
"""


def learning(usable: Sequence[TrialRecord], speed: Estimate) -> tuple[dict[str, Any], list[str]]:
    """The metrics of learning of one configuration, by their keys, and notes.

    Repetitions whose losses are not finite are left out, with a note.
    """
    curves = [(losses(record), record) for record in usable]
    runs = [(run, record) for run, record in curves if run and is_finite(run)]
    notes, found = [], dict[str, Any]()
    if bad := sum(bool(run) for run, _ in curves) - len(runs):
        repetitions = units.counted(bad, "completed repetition")
        notes.append(f"losses of {repetitions} are not finite and left out")
    if runs:
        for metric in DECLARED:
            if metric.of_losses:
                read = [metric.read(record) for _, record in runs]
                values = [value for value in read if value is not None]
                found[metric.key] = metric.average(values, metric.unit)
    if (slope := loss_slope([run for run, _ in runs])) is not None:
        items_per_step = throughput.items(usable[0]) / len(throughput.step_seconds(usable[0]))
        steps_per_second = speed.scaled(1 / items_per_step, unit="steps/s")
        found["loss_slope_per_second"] = product(slope, steps_per_second, unit="per s")
    return found, notes


def loss_slope(runs: Sequence[Sequence[float]]) -> Estimate | None:
    """Loss reduction per step: minus the Theil-Sen slope over medians of blocks.

    Over repetitions with different curves the interval is a t interval. Repetitions of one seed
    follow the same curve, so they are one sample of the noise, and the interval is Kendall's, from
    the noise between blocks. None if no repetition has two losses.
    """
    known = [run for run in runs if len(run) > 1]
    if len(known) > 1 and not are_one_sample(known):
        return mean([_slope_of_one(run).value for run in known], unit="per step")
    return _slope_of_one(known[0]) if known else None


def _slope_of_one(run: Sequence[float]) -> Estimate:
    from scipy.stats import theilslopes  # half a second, which only losses need

    # No blocks, and no interval, for fewer steps.
    count = next((blocks for least, blocks in SLOPE_BLOCKS if len(run) >= least), 0)
    length = len(run) // (count or len(run))
    medians = block_medians(run, length)
    slope, _, low, high = (float(value) / length for value in theilslopes(medians))
    return Estimate(
        value=-slope,
        low=-high if count else None,
        high=-low if count else None,
        unit="per step",
        sample_size=len(medians) if count else 1,
        basis="step batches" if count else "single value",
    )

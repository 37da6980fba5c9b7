"""Losses of a run, and a smooth curve of them over seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpbench.analysis.estimate import Floats
from dpbench.errors import StoreError
from dpbench.records.trial import TrialRecord
from dpbench.specs import plain_label

LARGEST_LOSS = float(np.finfo(np.float32).max)


def is_finite(step_losses: Sequence[float]) -> bool:
    """Whether all losses are numbers that single precision can hold."""
    return all(map(LARGEST_LOSS.__ge__, map(abs, step_losses)))


def losses(record: TrialRecord) -> tuple[float, ...]:
    """Loss of every timed step: the mean over ranks, weighted by the samples they consumed.

    Empty if no rank recorded losses; raises StoreError if the ranks do not fit together.
    """
    windows = [rank.timed for rank in record.ranks if rank.timed.samples > 0]
    lengths = sorted({len(window.losses) for window in windows})
    if len(lengths) > 1:
        raise StoreError(
            f"trial {record.trial.trial_id} ({plain_label(record.trial)}): its ranks recorded "
            f"{' and '.join(map(str, lengths))} losses, expected the same number"
        )
    if lengths in ([], [0]):
        return ()
    if len(windows) == 1:
        return windows[0].losses
    weights = np.array([window.samples for window in windows], dtype=np.float64)
    # A diverged loss may be infinite on one rank only: that is a result, not an error.
    with np.errstate(invalid="ignore"):
        weighted = (weights / weights.sum()) @ np.array([window.losses for window in windows])
    return tuple(weighted.tolist())


BLOCKS = 100
TRAILING_BLOCKS = 5


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LossCurve:
    """Arrays of shape (blocks,): values at the end of each block."""

    losses: Floats
    """Smoothed losses."""
    seconds: Floats
    """Seconds of the slowest rank."""


def loss_curve(record: TrialRecord) -> LossCurve | None:
    """The curve of a measured run; None without losses, or if any is not finite.

    Raises StoreError if the numbers of losses and steps differ.
    """
    per_step = losses(record)
    if not per_step or not is_finite(per_step):
        return None
    slowest = max((rank.timed for rank in record.ranks), key=lambda window: window.seconds)
    steps = len(slowest.step_seconds)
    if len(per_step) != steps:
        raise StoreError(
            f"trial {record.trial.trial_id} ({plain_label(record.trial)}): got {len(per_step)} "
            f"losses for {steps} timed steps, expected one each"
        )
    length = max(1, steps // BLOCKS)
    medians = block_medians(per_step, length)
    ends = length * np.arange(1, len(medians) + 1)
    trailing = [medians[max(0, i - TRAILING_BLOCKS) : i].mean() for i in range(1, len(medians) + 1)]
    return LossCurve(
        losses=np.array(trailing),
        seconds=np.cumsum(slowest.step_seconds)[ends - 1],
    )


def block_medians(per_step: Sequence[float], length: int) -> Floats:
    """Medians of consecutive blocks of `length` steps; an incomplete last block is left out."""
    count = len(per_step) // length
    blocks = np.asarray(per_step[: count * length], dtype=np.float64).reshape(count, length)
    medians: Floats = np.median(blocks, axis=1)
    return medians


AGREEMENT_STEPS = 50
"""Steps of two runs that are compared; rounding grows with every step."""
AGREEMENT_TOLERANCE = 1e-3
"""Relative difference up to which two runs follow the same curve. Float32 leaves 2e-7 (mlp) to 3e-6
(gpt) after 50 steps between 1 and 2 replicas; the rest is room for deeper models, more replicas and
other kernels."""


def are_one_sample(curves: Sequence[Sequence[float]]) -> bool:
    """Whether runs follow the same curve, as repetitions with the same seed do: the largest
    (largest - smallest) ÷ |mean| of their first steps is small.

    Their spread is rounding: it says nothing about other seeds. A curve that is zero or not finite
    where another is not differs from it.
    """
    steps = min(AGREEMENT_STEPS, *map(len, curves))
    table = np.array([curve[:steps] for curve in curves], dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        spread = table.max(axis=0) - table.min(axis=0)
        relative = spread / np.abs(table.mean(axis=0))
    relative[spread == 0] = 0.0
    relative[np.isnan(relative)] = np.inf
    return bool(relative.max(initial=0.0) <= AGREEMENT_TOLERANCE)

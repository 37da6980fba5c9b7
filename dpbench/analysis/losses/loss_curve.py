"""The losses of a run: their deltas, and a smooth curve over samples and seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpbench.errors import StoreError
from dpbench.records import TrialRecord

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
            f"trial {record.trial.trial_id} ({record.trial.label}): its ranks recorded "
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


def loss_delta(step_losses: Sequence[float]) -> float:
    """First - last timed loss; positive when training reduced it."""
    return step_losses[0] - step_losses[-1]


def loss_delta_per_step(step_losses: Sequence[float]) -> float:
    """Loss delta ÷ number of timed steps."""
    return loss_delta(step_losses) / len(step_losses)


def loss_delta_per_second(step_losses: Sequence[float], elapsed_seconds: float) -> float:
    """Loss delta ÷ seconds of the timed window."""
    return loss_delta(step_losses) / elapsed_seconds


Floats = NDArray[np.float64]

BLOCKS = 100
TRAILING_BLOCKS = 5


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LossCurve:
    """Arrays of shape (blocks,): values at the end of each block."""

    losses: Floats
    """Smoothed losses."""
    steps: Floats
    samples: Floats
    """Samples consumed by all ranks."""
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
            f"trial {record.trial.trial_id} ({record.trial.label}): got {len(per_step)} losses "
            f"for {steps} timed steps, expected one each"
        )
    samples_per_step = np.float64(sum(rank.timed.samples for rank in record.ranks) / steps)
    length = max(1, steps // BLOCKS)
    medians = block_medians(per_step, length)
    ends = length * np.arange(1, len(medians) + 1)
    return LossCurve(
        losses=_trailing_mean(medians),
        steps=ends.astype(np.float64),
        samples=ends * samples_per_step,
        seconds=np.cumsum(slowest.step_seconds)[ends - 1],
    )


def block_medians(per_step: Sequence[float], length: int) -> Floats:
    """Medians of consecutive blocks of `length` steps; an incomplete last block is left out."""
    count = len(per_step) // length
    blocks = np.asarray(per_step[: count * length], dtype=np.float64).reshape(count, length)
    medians: Floats = np.median(blocks, axis=1)
    return medians


def _trailing_mean(values: Floats) -> Floats:
    """Mean of each value and the four before it; the first values have fewer."""
    return np.array(
        [values[max(0, i - TRAILING_BLOCKS) : i].mean() for i in range(1, len(values) + 1)]
    )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LossBand:
    """Arrays of shape (points,), along steps, samples or seconds."""

    at: Floats
    median: Floats
    low: Floats
    """The smallest loss over repetitions."""
    high: Floats
    repetitions: int


def loss_band(curves: Sequence[LossCurve], along: Sequence[Floats]) -> LossBand | None:
    """Overlay the curves of repetitions along their steps, samples or seconds.

    If they have no points in common, as along seconds, each is interpolated linearly between its
    own; the band covers the range that all of them reach. None if there is no such range.
    """
    first = along[0]
    if all(np.array_equal(first, other) for other in along):
        at, values = first, np.stack([curve.losses for curve in curves])
    else:
        start, end = max(own[0] for own in along), min(own[-1] for own in along)
        if start >= end:
            return None
        at = np.linspace(start, end, max(map(len, along)))
        pairs = zip(along, curves, strict=True)
        values = np.stack([np.interp(at, own, curve.losses) for own, curve in pairs])
    return LossBand(
        at=at,
        median=np.median(values, axis=0),
        low=values.min(axis=0),
        high=values.max(axis=0),
        repetitions=len(curves),
    )

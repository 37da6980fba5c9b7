"""Losses of a run: a smooth curve over seconds, and the time to a loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpbench import units
from dpbench.analysis.estimate import Estimate, Floats, LogMean
from dpbench.errors import StoreError
from dpbench.records.trial import TrialRecord

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
            f"trial {record.trial.trial_id} ({record.trial.label}): got {len(per_step)} losses "
            f"for {steps} timed steps, expected one each"
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


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LossBand:
    """Arrays of shape (points,)."""

    at: Floats
    """Seconds."""
    median: Floats
    low: Floats
    """The smallest loss over repetitions."""
    high: Floats
    repetitions: int


def loss_band(curves: Sequence[LossCurve]) -> LossBand | None:
    """Overlay the curves of repetitions along their seconds.

    If they have no points in common, each is interpolated linearly between its own; the band covers
    the range that all of them reach. None if there is no such range.
    """
    along = [curve.seconds for curve in curves]
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


AGREEMENT_STEPS = 50
"""Steps of two runs that are compared. Rounding grows with every step; a wrong scale or a lost
shard shows much earlier."""
AGREEMENT_TOLERANCE = 1e-3
"""Relative difference up to which two runs follow the same curve. Float32 leaves 2e-7 (mlp) to 3e-6
(gpt) after 50 steps between 1 and 2 replicas; the rest is room for deeper models, more replicas and
other kernels."""


def max_relative_difference(curves: Sequence[Sequence[float]]) -> float:
    """Over the first steps that all curves have, the largest (largest - smallest) ÷ |mean| of a
    step.

    It is infinite if one curve is zero or not finite and another is not.
    """
    steps = min(AGREEMENT_STEPS, *map(len, curves))
    table = np.array([curve[:steps] for curve in curves], dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        spread = table.max(axis=0) - table.min(axis=0)
        relative = spread / np.abs(table.mean(axis=0))
    relative[spread == 0] = 0.0
    relative[np.isnan(relative)] = np.inf
    return float(relative.max(initial=0.0))


def are_one_sample(curves: Sequence[Sequence[float]]) -> bool:
    """Whether runs follow the same curve, as repetitions with the same seed do.

    Their spread is rounding: it says nothing about other seeds.
    """
    return max_relative_difference(curves) <= AGREEMENT_TOLERANCE


STAY_BLOCKS = 3
"""Number of blocks for which the smoothed loss has to stay at the target or below."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TimeToLoss:
    """Seconds of the timed window until the target, over repetitions.

    If any repetition did not reach it, there is no mean: leaving that one out would flatter the
    configuration. It is only known to take longer than `longest_seconds`.
    """

    target_loss: float
    repetitions: int
    censored: int
    """Number of repetitions that did not reach the target."""
    longest_seconds: float
    """Longest window that did not reach it; the longest of all if all did."""
    seconds: Estimate | None

    @property
    def words(self) -> str:
        """How long it takes at least, where a repetition did not reach the target."""
        return "" if self.seconds else f"> {units.seconds(self.longest_seconds)}"


def time_to_loss(
    records: Sequence[TrialRecord], target_loss: float, *, diverged: int = 0
) -> TimeToLoss | None:
    """Time to the loss over the measured repetitions of a configuration; None if none has finite
    losses.

    Repetitions whose losses are not finite, and `diverged` further ones, never reach it.
    """
    curves = [curve for curve in map(loss_curve, records) if curve is not None]
    if not curves:
        return None
    diverged += sum(not is_finite(losses(record)) for record in records)
    reached = [first_at_loss(curve, target_loss) for curve in curves]
    missed = [c for c, place in zip(curves, reached, strict=True) if place is None]
    arrived = [place for place in reached if place is not None]
    seconds = None
    if not missed and not diverged:
        seconds = LogMean.of_runs(arrived).estimate("s")
    return TimeToLoss(
        target_loss=target_loss,
        repetitions=len(curves) + diverged,
        censored=len(missed) + diverged,
        longest_seconds=max(float(curve.seconds[-1]) for curve in missed or curves),
        seconds=seconds,
    )


def first_at_loss(curve: LossCurve, target_loss: float) -> float | None:
    """Seconds after which the smoothed loss stays at most the target for three blocks.

    It is linear inside the block that reaches the target; a run that is there after its first block
    gets the end of that block. None if it never is, or not for long enough.
    """
    below = curve.losses <= target_loss
    starts = range(len(below) - STAY_BLOCKS + 1)
    block = next((i for i in starts if below[i : i + STAY_BLOCKS].all()), None)
    if block is None:
        return None
    if block == 0:
        return float(curve.seconds[0])
    before, after = curve.losses[block - 1 : block + 1]
    part = (before - target_loss) / (before - after)
    start, end = curve.seconds[block - 1 : block + 1]
    return float(start + part * (end - start))

"""Training time to a given loss, even if some runs never reach it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dpbench.analysis.estimate import Estimate, LogMean
from dpbench.analysis.losses.loss_agreement import loss_mean
from dpbench.analysis.losses.loss_curve import Floats, LossCurve, is_finite, loss_curve, losses
from dpbench.records import TrialRecord

STAY_BLOCKS = 3
"""Number of blocks for which the smoothed loss has to stay at the target or below."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TimeToLoss:
    """Seconds and samples of the timed window until the target, over repetitions.

    If any repetition did not reach it, there is no mean: leaving that one out would flatter the
    configuration. It is only known to take longer than `longest_seconds`.
    """

    target_loss: float
    repetitions: int
    censored: int
    """Number of repetitions that did not reach the target."""
    longest_seconds: float
    """Longest window that did not reach it; the longest of all if all did."""
    first_loss: float
    """Smoothed loss at the beginning of the window; the lowest over repetitions."""
    seconds: Estimate | None
    samples: Estimate | None

    @property
    def plain(self) -> Estimate | None:
        return self.seconds


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
    seconds = samples = None
    if not missed and not diverged:
        seconds = LogMean.of_runs([place[0] for place in arrived]).estimate("s")
        samples = loss_mean([place[1] for place in arrived], unit=records[0].item)
    return TimeToLoss(
        target_loss=target_loss,
        repetitions=len(curves) + diverged,
        censored=len(missed) + diverged,
        longest_seconds=max(float(curve.seconds[-1]) for curve in missed or curves),
        first_loss=min(float(curve.losses[0]) for curve in curves),
        seconds=seconds,
        samples=samples,
    )


def first_at_loss(curve: LossCurve, target_loss: float) -> tuple[float, float] | None:
    """(seconds, samples) after which the smoothed loss stays at most the target for three blocks.

    It is linear inside the block that reaches the target; a run that is there after its first block
    gets the end of that block. None if it never is, or not for long enough.
    """
    below = curve.losses <= target_loss
    starts = range(len(below) - STAY_BLOCKS + 1)
    block = next((i for i in starts if below[i : i + STAY_BLOCKS].all()), None)
    if block is None:
        return None
    if block == 0:
        return float(curve.seconds[0]), float(curve.samples[0])
    before, after = curve.losses[block - 1 : block + 1]
    part = (before - target_loss) / (before - after)

    def at(axis: Floats) -> float:
        return float(axis[block - 1] + part * (axis[block] - axis[block - 1]))

    return at(curve.seconds), at(curve.samples)

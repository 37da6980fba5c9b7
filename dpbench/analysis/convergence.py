"""A trial's losses, and the deltas of the benchmark whose table they reproduce.

The deltas compare two single steps, the first and the last timed one, so they are noisy and can
be negative. `loss_rate` and `time_to_loss` use every step.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

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

"""The progress of a training: its position, its running sums, and the values of its steps.

Steps leave losses and gradient norms on the device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from dpbench.codec import Float
from dpbench.errors import DpbenchError
from dpbench.measure.rank_group import RankGroup

REMEDY = "lower the learning rate, warm it up, or clip the gradients with a max norm"


class NotFinite(DpbenchError):
    """A loss, gradient or parameter is NaN or infinite: nothing is learned after that."""


@dataclass(kw_only=True, slots=True)
class Progress:
    """Position between two optimizer steps, and sums up to it; the same on all ranks.

    A checkpoint stores it.
    """

    epoch: int = 0
    """Epoch to continue with, from 0."""
    window: int = 0
    """Window of that epoch to continue with, from 0."""
    step: int = 0
    """Number of optimizer steps done, including skipped ones."""
    skipped_steps: int = 0
    epoch_loss_sum: Float = 0.0
    """Sum of the loss over all samples since the epoch began."""
    line_loss_sum: Float = 0.0
    """Sum of the loss over all samples since the last line of the log."""
    line_samples: int = 0
    """Number of samples since the last line of the log."""
    final_loss: Float | None = None
    """Mean loss over the last whole epoch."""
    best_metric: float | None = None
    """`Score.metric` of the best epoch so far."""


@dataclass(slots=True)
class Pace:
    """Samples and seconds of a period of training, without evaluation."""

    seconds: float = 0.0
    waited_seconds: float = 0.0
    """Seconds that this rank waited for samples."""
    samples: int = 0
    """Number of samples of all ranks."""

    def add(self, *, seconds: float, waited_seconds: float, samples: int) -> None:
        self.seconds += seconds
        self.waited_seconds += waited_seconds
        self.samples += samples

    @property
    def wait_share(self) -> float:
        """Share of the time spent waiting for samples; 0 if no time has passed."""
        return self.waited_seconds / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True, eq=False)
class StepOutcome:
    """Results of a step; tensors stay on the device, to be read later."""

    loss_sum: torch.Tensor
    """Sum of the loss over this rank's samples of the window; float64, 0-dimensional."""
    gradient_norm: torch.Tensor | None
    """Gradient norm before clipping; None without clipping."""
    skipped: bool = False
    """Whether the optimizer left the parameters alone, as a gradient overflowed in float16."""


def read_steps(
    outcomes: Sequence[StepOutcome],
    largest_parameter: torch.Tensor,
    ranks: RankGroup,
    *,
    epoch: int,
    step: int,
    may_skip: bool,
) -> tuple[list[float], float | None]:
    """Read the outcomes of these steps, with one wait for the device; a collective.

    Returns the sums of the loss by step, over all ranks, and the gradient norm of the last step:
    None without clipping, or if it is not finite.

    Args:
        largest_parameter: the largest magnitude in the model after the last step.
        epoch, step: of the last step, both from 1.
        may_skip: losses that are not finite are no error, as such steps are skipped.

    Raises NotFinite, the same on all ranks, with the first step and rank.
    """
    losses, count = [outcome.loss_sum for outcome in outcomes], len(outcomes)
    norms = [one.gradient_norm for one in outcomes[-1:] if one.gradient_norm is not None]
    values = torch.stack([value.double() for value in (*losses, largest_parameter, *norms)])
    rows = ranks.gather(values.tolist())
    for place in range(count + 1):
        for rank, row in enumerate(rows):
            if math.isfinite(row[place]):
                continue
            if place == count:  # a finite loss may have gradients that are not
                where = f"after epoch {epoch}, step {step}, on rank {rank}"
                raise NotFinite(f"a parameter is {row[place]} {where}; {REMEDY}")
            if not may_skip:
                where = f"in epoch {epoch}, step {step - count + 1 + place}, on rank {rank}"
                raise NotFinite(f"the loss is {row[place]} {where}; {REMEDY}")
    norm = rows[0][-1] if norms and math.isfinite(rows[0][-1]) else None
    return [sum(row[place] for row in rows) for place in range(count)], norm

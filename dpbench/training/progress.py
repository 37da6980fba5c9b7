"""The progress of a training: its position, its running sums, and the values of its steps.

Steps leave losses and gradient norms on the device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from dpbench.codec import Float
from dpbench.errors import DpbenchError
from dpbench.measure.rank_group import RankGroup
from dpbench.training.learner import StepOutcome


@dataclass(slots=True)
class MeanLoss:
    """Mean loss, weighted by the number of samples."""

    total: Float = 0.0
    samples: int = 0

    def add(self, total: float, samples: int) -> None:
        self.total += total
        self.samples += samples

    @property
    def mean(self) -> float:
        return self.total / self.samples


@dataclass(slots=True)
class Sums:
    """Plain numbers, the same on all ranks, that a checkpoint stores."""

    epoch_loss: MeanLoss = field(default_factory=MeanLoss)
    """Mean loss since the epoch began."""
    line_loss: MeanLoss = field(default_factory=MeanLoss)
    """Mean loss since the last line of the log."""
    first_rank_samples: int = 0
    """Number of samples on rank 0 since the epoch began."""
    skipped_steps: int = 0
    final_loss: Float | None = None
    """Mean loss over the last whole epoch."""


@dataclass(slots=True)
class Position:
    """Position between two optimizer steps."""

    epoch: int = 0
    """Epoch to continue with, from 0."""
    window: int = 0
    """Window of that epoch to continue with, from 0."""
    step: int = 0
    """Number of optimizer steps done, including skipped ones."""
    best_metric: float | None = None
    sums: Sums = field(default_factory=Sums)

    @property
    def loss(self) -> float:
        """Mean training loss of the epoch so far; at its start that of the previous one."""
        if self.window == 0 and self.sums.final_loss is not None:
            return self.sums.final_loss
        return self.sums.epoch_loss.mean

    def begin_epoch(self) -> None:
        """Move on to the start of the next epoch."""
        self.epoch += 1
        self.window = 0
        self.sums.final_loss = self.sums.epoch_loss.mean
        self.sums.epoch_loss = MeanLoss()
        self.sums.first_rank_samples = 0


@dataclass(slots=True)
class Pace:
    """Samples and seconds of a period of training, without evaluation."""

    seconds: float = 0.0
    waited_seconds: float = 0.0
    """Seconds that this rank waited for samples."""
    samples: int = 0
    """Number of samples of all ranks."""

    @property
    def samples_per_second(self) -> float:
        return self.samples / self.seconds

    @property
    def wait_share(self) -> float:
        """Share of the time spent waiting for samples; 0 if no time has passed."""
        return self.waited_seconds / self.seconds if self.seconds else 0.0


REMEDY = "lower the learning rate, warm it up, or clip the gradients with a max norm"


class NotFinite(DpbenchError):
    """A loss, gradient or parameter is NaN or infinite: from then on nothing is learnt."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepValues:
    """Values of the steps since the previous reading, over all ranks."""

    loss_sums: list[float]
    """Sums of the loss by step, over all samples of its window."""
    samples: list[int]
    """Number of samples by step, over all ranks."""
    first_rank_samples: int
    """Number of samples of rank 0 alone, over all these steps."""
    gradient_norm: float | None
    """Gradient norm of the last step on rank 0, before clipping; None without clipping, or if it is
    not finite."""


def read_steps(
    outcomes: Sequence[StepOutcome],
    largest_parameter: torch.Tensor,
    ranks: RankGroup,
    *,
    epoch: int,
    step: int,
    may_skip: bool,
) -> StepValues:
    """Read the values of these steps, with one wait for the device; a collective.

    Args:
        largest_parameter: the largest magnitude in the model after the last step.
        epoch, step: of the last step, both from 1.
        may_skip: losses and gradients that are not finite are no error, as such steps are skipped.

    Raises NotFinite, the same on all ranks, with the first step and rank.
    """
    losses = [outcome.loss_sum for outcome in outcomes]
    norms = [o.gradient_norm for o in outcomes if o.gradient_norm is not None]
    on_device = torch.stack([value.double() for value in (largest_parameter, *losses, *norms)])
    samples = [float(outcome.samples) for outcome in outcomes]
    # By rank: the largest parameter, then the losses, norms and samples of each step.
    rows = ranks.gather([*on_device.tolist(), *samples])
    count, begin_of_samples = len(outcomes), 1 + len(losses) + len(norms)
    problems = [
        (number, order, rank, what, value)
        for rank, row in enumerate(rows)
        for order, what, first in ((0, "loss", 1), (1, "gradient norm", 1 + count))
        for number, value in enumerate(row[first : min(first + count, begin_of_samples)])
        if not math.isfinite(value)
    ]
    if problems and not may_skip:
        # The earliest, where a loss comes before the gradients that follow from it.
        number, _, rank, what, value = min(problems)
        where = f"in epoch {epoch}, step {step - count + 1 + number}, on rank {rank}"
        raise NotFinite(f"the {what} is {value} {where}; {REMEDY}")
    for rank, (largest, *_) in enumerate(rows):
        if not math.isfinite(largest):  # a finite loss may have gradients that are not
            where = f"after epoch {epoch}, step {step}, on rank {rank}"
            raise NotFinite(f"a parameter is {largest} {where}; {REMEDY}")
    norm = rows[0][begin_of_samples - 1] if norms else None
    return StepValues(
        loss_sums=[sum(row[1 + i] for row in rows) for i in range(count)],
        samples=[int(sum(row[begin_of_samples + i] for row in rows)) for i in range(count)],
        first_rank_samples=int(sum(rows[0][begin_of_samples:])),
        gradient_norm=norm if norm is not None and math.isfinite(norm) else None,
    )

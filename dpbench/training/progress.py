"""The progress of a training: its position, its running sums, and the values of a window.

A window leaves losses and gradient norms on the device.
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


Rows = Sequence[Sequence[float]]
"""Values by rank and step."""
REMEDY = "lower the learning rate, warm it up, or clip the gradients with a max norm"


class NotFinite(DpbenchError):
    """A loss, gradient or parameter is NaN or infinite: from then on nothing is learnt."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WindowValues:
    """Values of the steps since the previous reading, over all ranks."""

    loss_sums: tuple[float, ...]
    """Sums of the loss by step, over all samples of its window."""
    samples: tuple[int, ...]
    """Number of samples by step, over all ranks."""
    first_rank_samples: int
    """Number of samples of rank 0 alone, over all these steps."""
    gradient_norm: float | None
    """Gradient norm of the last step on rank 0, before clipping; None without clipping, or if it is
    not finite."""


@dataclass(slots=True)
class WindowLog:
    """Collects the values that steps leave, without waiting for the device until `read`."""

    tolerant: bool
    """True if values that are not finite are no error, since such steps are skipped."""
    _outcomes: list[StepOutcome] = field(default_factory=list)

    def add(self, outcome: StepOutcome) -> None:
        self._outcomes.append(outcome)

    def read(
        self, ranks: RankGroup, *, epoch: int, step: int, largest_parameter: torch.Tensor
    ) -> WindowValues:
        """Read everything since the last call, with one wait for the device; a collective.

        `epoch` and `step`, both from 1, belong to the last step, and `largest_parameter` is the
        largest magnitude in the model after it. Raises NotFinite, the same on all ranks, with the
        first step and rank.
        """
        outcomes, self._outcomes = self._outcomes, []
        count = len(outcomes)
        losses = [outcome.loss_sum for outcome in outcomes]
        norms = [o.gradient_norm for o in outcomes if o.gradient_norm is not None]
        values = torch.stack([value.double() for value in (largest_parameter, *losses, *norms)])
        largest, *read = values.tolist()
        samples = [outcome.samples for outcome in outcomes]
        rows = ranks.gather([*read[:count], *samples, *read[count:], largest])
        parameters = [row.pop() for row in rows]
        everyones_losses = [row[:count] for row in rows]
        everyones_samples = [row[count : 2 * count] for row in rows]
        everyones_norms = [row[2 * count :] for row in rows]
        if not self.tolerant:
            _refuse_not_finite(everyones_losses, everyones_norms, epoch, step - count + 1)
        _refuse_not_finite_model(parameters, epoch, step)
        return WindowValues(
            loss_sums=tuple(map(sum, zip(*everyones_losses, strict=True))),
            samples=tuple(int(sum(of_step)) for of_step in zip(*everyones_samples, strict=True)),
            first_rank_samples=int(sum(everyones_samples[0])),
            gradient_norm=_last_finite(everyones_norms[0]),
        )


def _refuse_not_finite(losses: Rows, norms: Rows, epoch: int, first_step: int) -> None:
    """Raise NotFinite for the earliest value: a loss comes before the gradients that follow from
    it."""
    found = [
        (step, order, rank, what, value)
        for order, (what, rows) in enumerate((("loss", losses), ("gradient norm", norms)))
        for rank, values in enumerate(rows)
        for step, value in enumerate(values, start=first_step)
        if not math.isfinite(value)
    ]
    if found:
        step, _, rank, what, value = min(found)
        raise NotFinite(
            f"the {what} is {value} in epoch {epoch}, step {step}, on rank {rank}; {REMEDY}"
        )


def _refuse_not_finite_model(largest: Sequence[float], epoch: int, step: int) -> None:
    """Refuse a model that is not finite before it is saved or reported as trained: a finite loss
    may have gradients that are not."""
    for rank, value in enumerate(largest):
        if not math.isfinite(value):
            raise NotFinite(
                f"a parameter is {value} after epoch {epoch}, step {step}, on rank {rank}; {REMEDY}"
            )


def _last_finite(norms: Sequence[float]) -> float | None:
    return norms[-1] if norms and math.isfinite(norms[-1]) else None

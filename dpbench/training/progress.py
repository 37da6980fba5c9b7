"""How far a training is: its place, and what is summed up on the way there."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class MeanLoss:
    """Of samples, by their number."""

    total: float = 0.0
    samples: int = 0

    def add(self, total: float, samples: int) -> None:
        self.total += total
        self.samples += samples

    @property
    def mean(self) -> float:
        return self.total / self.samples


@dataclass(slots=True)
class Sums:
    """Plain numbers, the same on all ranks, that a checkpoint takes along."""

    epoch_loss: MeanLoss = field(default_factory=MeanLoss)
    """Since the epoch began."""
    line_loss: MeanLoss = field(default_factory=MeanLoss)
    """Since the last line of the log."""
    first_rank_samples: int = 0
    """Of rank 0, since the epoch began."""
    skipped_steps: int = 0
    final_loss: float | None = None
    """Mean over the last whole epoch."""


@dataclass(slots=True)
class Position:
    """Between two optimizer steps."""

    epoch: int = 0
    """The one to go on with, from 0."""
    window: int = 0
    """The one of that epoch to go on with, from 0."""
    step: int = 0
    """Optimizer steps done, those that were left out included."""
    best_metric: float | None = None
    sums: Sums = field(default_factory=Sums)

    @property
    def loss(self) -> float:
        """Mean training loss of the epoch so far, at its start of the one before."""
        if self.window == 0 and self.sums.final_loss is not None:
            return self.sums.final_loss
        return self.sums.epoch_loss.mean

    def begin_epoch(self) -> None:
        """Moves on to the start of the next one."""
        self.epoch += 1
        self.window = 0
        self.sums.final_loss = self.sums.epoch_loss.mean
        self.sums.epoch_loss = MeanLoss()
        self.sums.first_rank_samples = 0


@dataclass(slots=True)
class Pace:
    """Samples and seconds of some time of training; evaluation is no part of it."""

    seconds: float = 0.0
    waited_seconds: float = 0.0
    """For samples, on this rank."""
    samples: int = 0
    """Of all ranks."""

    @property
    def samples_per_second(self) -> float:
        return self.samples / self.seconds

    @property
    def wait_share(self) -> float:
        """0 where there was no time to wait in."""
        return self.waited_seconds / self.seconds if self.seconds else 0.0

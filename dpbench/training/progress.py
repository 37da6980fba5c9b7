"""Progress of a training: its position, and running sums."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class MeanLoss:
    """Mean loss, weighted by the number of samples."""

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
    """Plain numbers, the same on all ranks, that a checkpoint stores."""

    epoch_loss: MeanLoss = field(default_factory=MeanLoss)
    """Mean loss since the epoch began."""
    line_loss: MeanLoss = field(default_factory=MeanLoss)
    """Mean loss since the last line of the log."""
    first_rank_samples: int = 0
    """Number of samples on rank 0 since the epoch began."""
    skipped_steps: int = 0
    final_loss: float | None = None
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

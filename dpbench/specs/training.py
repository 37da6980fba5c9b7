"""The specification of one training: everything that decides its resulting numbers.

The same spec and the same data give the same parameters, whatever the number of interruptions,
unless shares are balanced by measured speed.
Logs, checkpoints and time limits are in `TrainingRunOptions`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from dpbench.specs.parallel import ParallelSpec

LastBatch = Literal["step", "drop"]
Balance = Literal["equal", "speed"]
Evaluation = Literal["sharded", "rank0", "off"]
RESUME_LATEST = "auto"
"""The value of --resume that means the latest checkpoint."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingSpec(ParallelSpec):
    """One training, from the seed to the last epoch."""

    batch_size: int
    """Samples per replica and micro-step."""
    epochs: int
    gamma: float
    """Factor of the learning rate after each epoch, as torch's StepLR has it."""
    last_batch: LastBatch = "step"
    """Whether an epoch's last step, if it has fewer micro-steps, is taken, weighted by its samples,
    or dropped."""
    max_norm: float | None = None
    """The gradient of all parameters is scaled down to this norm; None leaves it as it is."""
    balance: Balance = "equal"
    """Equal shares of every global batch, or shares by the speed of each rank, set anew for every
    epoch from the one before."""
    train_samples: int | None = None
    """The first so many samples are trained on; None: all."""

    def learning_rate_in(self, epoch: int) -> float:
        """The learning rate of an epoch, counted from 0."""
        return self.scaled_lr * self.gamma**epoch

    def with_files_of(self, other: TrainingSpec) -> TrainingSpec:
        """The specification with `other`'s files: code may be improved while it is trained, as long
        as the parameters keep their names and shapes."""
        files = other.workload.files_sha256
        return replace(self, workload=replace(self.workload, files_sha256=files))


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingRunOptions:
    """Options of one run of a training; none of them changes a parameter."""

    evaluation: Evaluation = "sharded"
    """The ranks that evaluate the test samples after each epoch; the numbers are the same."""
    max_steps: int | None = None
    """Optimizer steps, of all resumptions together, at which it stops; None: after all epochs."""
    log_interval: int = 20
    """Optimizer steps between two lines of the log."""
    checkpoint: str | None = None
    """Each checkpoint is also written to this file, an absolute path."""
    checkpoint_every: int | None = None
    """Optimizer steps between two checkpoints; None: at the end of each epoch only."""
    max_checkpoints: int = 10
    """The latest so many are kept, and the best."""
    prefetch: int = 0
    """Optimizer steps whose batches a thread loads ahead; 0: each step loads its own."""
    check_sync_every: int | None = None
    """Optimizer steps between two comparisons of the parameters of all ranks."""
    timeout_seconds: float = 120.0
    """Longest wait of ranks for each other, at the start and in a collective."""
    debug: bool = False
    """Let torch.distributed and NCCL say more, as TORCH_DISTRIBUTED_DEBUG=DETAIL does."""

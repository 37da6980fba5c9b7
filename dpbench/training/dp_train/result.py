"""The result of `dp_train`: the trained model and the history of its steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

Indices = tuple[tuple[int, ...], ...]
"""The samples of one step: for each replica their indices in the data."""


class NonFinite(ArithmeticError):
    """A loss or a gradient is NaN or infinite; `replica` is None for the mean gradient."""

    def __init__(
        self, what: str, iteration: int, samples: tuple[int, ...], replica: int | None = None
    ) -> None:
        where = "" if replica is None else f", replica {replica}"
        super().__init__(
            f"{what} in iteration {iteration}{where}, samples {list(samples)}; lower the learning "
            'rate, check these samples, or pass on_nonfinite="record"'
        )
        self.what = what
        self.iteration = iteration
        self.replica = replica
        self.samples = samples

    def __reduce__(self) -> tuple[Any, ...]:
        # By default an exception is pickled with only its message.
        return NonFinite, (self.what, self.iteration, self.samples, self.replica)


@dataclass(slots=True)
class History:
    """Values recorded at each step."""

    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    indices: list[Indices] = field(default_factory=list)
    skipped_steps: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingResult:
    """The trained model and the history of its training."""

    model: nn.Module
    """Replica 0, on its device, in the mode in which it was made."""
    params: dict[str, Tensor]
    """Parameters of the model by name, without graph; they share its memory."""
    loss_history: tuple[float, ...]
    """Mean loss over the replicas at each step; NaN if a replica's loss was not finite."""
    norm_history: tuple[float, ...]
    """Norm of the mean gradient over all parameters at each step, before clipping."""
    indices: tuple[Indices, ...]
    """Samples used, by step and replica."""
    skipped_steps: int
    """Steps without an update, because a loss or the gradient was not finite."""
    elapsed_seconds: float
    """Seconds of all steps; with processes, including their start."""
    steps_per_pass: int
    """Number of steps in which every sample is used once, rounded up."""

    @property
    def loss(self) -> float | None:
        """Loss of the last step; None if there was none."""
        return self.loss_history[-1] if self.loss_history else None

    @property
    def last_pass_loss(self) -> float | None:
        """Mean loss over the last pass through the data; None if there was no step."""
        last = self.loss_history[-self.steps_per_pass :]
        return sum(last) / len(last) if last else None

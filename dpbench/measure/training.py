"""One training step of one rank, the same for every implementation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Literal, Protocol

import torch

from dpbench.architecture import Architecture
from dpbench.measure.feed import Feed
from dpbench.measure.implementations import ParallelModel
from dpbench.measure.precision import FLOAT32, Numbers
from dpbench.specs import WorkloadSpec

Phase = Literal["data", "forward", "backward", "optimizer"]
Enter = Callable[[Phase | None], None]
"""Hears of every change of phase within a step, None at its end."""

_KERNELS = {"fused": {"fused": True}, "foreach": {"foreach": True}, "": {}}
_OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adamw": torch.optim.AdamW,
    "adam": torch.optim.Adam,
    "adadelta": torch.optim.Adadelta,
}


class Learning(Protocol):
    """What a spec must say to have an optimizer built: a TrialSpec or a TrainingSpec."""

    @property
    def workload(self) -> WorkloadSpec: ...

    @property
    def learning_rate(self) -> float: ...


def build_optimizer(module: torch.nn.Module, settings: Learning) -> torch.optim.Optimizer:
    """The workload's optimizer at torch's own defaults, over all parameters."""
    name, _, kernels = settings.workload.optimizer.partition("-")
    parameters = list(module.parameters())
    return _OPTIMIZERS[name](parameters, lr=settings.learning_rate, **_KERNELS[kernels])


def _unobserved(phase: Phase | None) -> None:
    """What a timed step calls: nothing that takes time."""


class Trainer:
    """Steps through prepared batches; keeps the losses on the device until they are asked for."""

    def __init__(
        self,
        model: ParallelModel,
        optimizer: torch.optim.Optimizer,
        architecture: Architecture,
        dataset: Feed,
        accumulation_steps: int,
        shown_steps: memoryview[int] | None = None,
        numbers: Numbers = FLOAT32,
    ) -> None:
        """The first of `shown_steps` is set to the number of steps after each."""
        self.model = model
        self.optimizer = optimizer
        self.losses: list[torch.Tensor] = []
        self.steps = 0
        self._shown_steps = (
            memoryview(bytearray(8)).cast("q") if shown_steps is None else shown_steps
        )
        self._loss = architecture.loss
        self._dataset = dataset
        self._accumulation_steps = accumulation_steps
        self._numbers = numbers

    def step(
        self, batches: Sequence[torch.Tensor], *, sync: bool = True, enter: Enter = _unobserved
    ) -> None:
        """One optimizer step over `batches`, the sample indices of each of its micro-steps."""
        loss = self._step(batches, sync, enter)
        if sync:
            enter("backward")  # where communication is counted, see measure.phases
            self.model.after_step()
        enter(None)
        self.steps += 1
        self._shown_steps[0] = self.steps
        if loss is not None:
            self.losses.append(loss)

    def _step(
        self, batches: Sequence[torch.Tensor], sync: bool, enter: Enter
    ) -> torch.Tensor | None:
        """Changes the parameters; returns the mean loss, None if there are no batches."""
        enter("optimizer")
        self.optimizer.zero_grad()
        total: torch.Tensor | None = None
        for number, indices in enumerate(batches, start=1):
            with self._reduction(sync=sync, last=number == len(batches)):
                loss = self._backward(indices, enter)
            total = loss if total is None else total + loss
        self.model.finish()
        enter("optimizer")
        self._numbers.step(self.optimizer)
        return total

    def _reduction(self, *, sync: bool, last: bool) -> AbstractContextManager[None]:
        if not sync:
            return self.model.without_sync()
        return nullcontext() if last else self.model.no_sync()

    def take_losses(self) -> tuple[float, ...]:
        """The mean loss of each step since the last call. Synchronizes: not for timed windows."""
        losses = torch.stack(self.losses).tolist() if self.losses else []
        self.losses.clear()
        return tuple(losses)

    def _backward(self, indices: torch.Tensor, enter: Enter) -> torch.Tensor:
        enter("data")
        inputs, targets = self._dataset.take(indices)
        enter("forward")
        with self._numbers.autocast:
            loss = self._loss(self.model.forward(inputs), targets)
        share = loss if self._accumulation_steps == 1 else loss / self._accumulation_steps
        weight = self.model.loss_weight
        weighted = share if weight == 1.0 else share * weight
        enter("backward")
        self.model.backward(self._numbers.scale(weighted))
        return share.detach()

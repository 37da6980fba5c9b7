"""One training step of one rank, the same for every implementation.

`accumulate_gradients` is the step up to the optimizer: a timed step of a benchmark and a step of
`dpbench train` both make it, so that what is measured is what trains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, Protocol

import torch

from dpbench.architecture import Architecture
from dpbench.data.batch import Samples
from dpbench.measure.feed import Feed
from dpbench.measure.implementations import ParallelModel
from dpbench.measure.precision import FLOAT32, Numbers
from dpbench.specs import WorkloadSpec

StepPhase = Literal["data", "forward", "backward", "optimizer"]
Enter = Callable[[StepPhase | None], None]
"""Called at every change of phase within a step, and with None at its end."""

MicroStep = tuple[Samples, Samples, float]
"""Inputs and targets of this process, and the weight of their mean loss in the backward pass."""

_KERNELS = {"fused": {"fused": True}, "foreach": {"foreach": True}, "": {}}
_OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adamw": torch.optim.AdamW,
    "adam": torch.optim.Adam,
    "adadelta": torch.optim.Adadelta,
}


class Learning(Protocol):
    """The part of a TrialSpec or a TrainingSpec that defines its optimizer."""

    @property
    def workload(self) -> WorkloadSpec: ...

    @property
    def learning_rate(self) -> float: ...


def build_optimizer(module: torch.nn.Module, settings: Learning) -> torch.optim.Optimizer:
    """Build the workload's optimizer over all parameters, at torch's defaults."""
    name, _, kernels = settings.workload.optimizer.partition("-")
    parameters = list(module.parameters())
    return _OPTIMIZERS[name](parameters, lr=settings.learning_rate, **_KERNELS[kernels])


def _unobserved(phase: StepPhase | None) -> None:
    """Phase callback of a timed step: it does nothing."""


def accumulate_gradients(
    model: ParallelModel,
    loss_function: Callable[[Any, Any], torch.Tensor],
    micro_steps: Iterable[MicroStep],
    count: int,
    numbers: Numbers,
    *,
    sync: bool = True,
    enter: Enter = _unobserved,
) -> list[torch.Tensor]:
    """Add up the gradients of `count` micro-steps, and reduce them with the last one.

    Returns the mean loss of each, on its device, without waiting for it. Without `sync` nothing is
    reduced.
    """
    losses = []
    for number, (inputs, targets, weight) in enumerate(micro_steps, start=1):
        with _reduction(model, sync=sync, last=number == count):
            enter("forward")
            with numbers.autocast:
                loss = loss_function(model.forward(inputs), targets)
            weighted = loss if weight == 1.0 else loss * weight
            enter("backward")
            model.backward(numbers.scale(weighted))
        losses.append(loss.detach())
    model.finish()
    return losses


def _reduction(model: ParallelModel, *, sync: bool, last: bool) -> AbstractContextManager[None]:
    if not sync:
        return model.without_sync()
    return nullcontext() if last else model.no_sync()


class Trainer:
    """Makes steps on prepared batches; keeps the losses on the device until they are read."""

    def __init__(
        self,
        model: ParallelModel,
        optimizer: torch.optim.Optimizer,
        architecture: Architecture,
        dataset: Feed,
        accumulation_steps: int,
        numbers: Numbers = FLOAT32,
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.losses: list[torch.Tensor] = []
        self.steps = 0
        self._loss = architecture.loss
        self._dataset = dataset
        self._accumulation_steps = accumulation_steps
        self.numbers = numbers

    def step(
        self, batches: Sequence[torch.Tensor], *, sync: bool = True, enter: Enter = _unobserved
    ) -> None:
        """Make one optimizer step over `batches`, the sample indices of each of its micro-steps."""
        loss = self._step(batches, sync, enter)
        if sync:
            enter("backward")  # where communication is counted, see measure.instruments
            self.model.after_step()
        enter(None)
        self.steps += 1
        if loss is not None:
            self.losses.append(loss)

    def _step(
        self, batches: Sequence[torch.Tensor], sync: bool, enter: Enter
    ) -> torch.Tensor | None:
        """Change the parameters; returns the mean loss, or None if there are no batches."""
        enter("optimizer")
        self.optimizer.zero_grad()
        losses = accumulate_gradients(
            self.model,
            self._loss,
            self._taken(batches, enter),
            len(batches),
            self.numbers,
            sync=sync,
            enter=enter,
        )
        enter("optimizer")
        self.numbers.step(self.optimizer)
        return self._mean_over_step(losses)

    def _mean_over_step(self, losses: Sequence[torch.Tensor]) -> torch.Tensor | None:
        total: torch.Tensor | None = None
        for loss in losses:
            # A division by 1 would add a kernel to every timed step.
            share = loss if self._accumulation_steps == 1 else loss / self._accumulation_steps
            total = share if total is None else total + share
        return total

    def take_losses(self) -> tuple[float, ...]:
        """Mean losses of the steps since the last call. It synchronizes: not for timed windows."""
        losses = torch.stack(self.losses).tolist() if self.losses else []
        self.losses.clear()
        return tuple(losses)

    def _taken(self, batches: Sequence[torch.Tensor], enter: Enter) -> Iterator[MicroStep]:
        for indices in batches:
            enter("data")
            yield (*self._dataset.take(indices), self.model.loss_weight / self._accumulation_steps)

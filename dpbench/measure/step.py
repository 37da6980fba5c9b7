"""One training step of one rank, the same for every implementation.

`accumulate_gradients` is the step up to the optimizer: a timed step of a benchmark and a step of
`dpbench train` both make it, so that what is measured is what trains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any, Literal

import torch

from dpbench.architecture import Architecture
from dpbench.data.batch import Samples
from dpbench.data.loading import Batch
from dpbench.measure.device import FLOAT32, AmpState
from dpbench.measure.implementations import ParallelModel
from dpbench.parallel import ShardedOptimizer
from dpbench.specs import ParallelSpec, WorkloadSpec
from dpbench.specs.workload import GRAPHED_MODES

StepPhase = Literal["data", "forward", "backward", "optimizer"]
Enter = Callable[[StepPhase | None], None]
"""Called at every change of phase within a step, and with None at its end."""

LossFunction = Callable[[Any, Any], torch.Tensor]
"""The mean loss of outputs and targets."""

LoadBatch = Callable[[torch.Tensor], tuple[Samples, Samples]]
"""Gives inputs and targets of the samples at some indices, on the device, in the model's layout."""

_KERNELS = {"fused": {"fused": True}, "foreach": {"foreach": True}, "": {}}
_OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adamw": torch.optim.AdamW,
    "adam": torch.optim.Adam,
    "adadelta": torch.optim.Adadelta,
}


def compile_module(module: torch.nn.Module, workload: WorkloadSpec) -> torch.nn.Module:
    """Compile `module` as the workload says, before it is wrapped, and return it.

    It is compiled in place, so that names of parameters, hooks and copies stay the module's.
    """
    if workload.compile != "none":
        module.compile(mode=None if workload.compile == "default" else workload.compile)
    return module


def loss_of(architecture: Architecture, workload: WorkloadSpec) -> LossFunction:
    """The architecture's loss; a copy of it where the model runs in CUDA graphs, as the loss may be
    an output of the model, which the next step overwrites."""
    if workload.compile not in GRAPHED_MODES:
        return architecture.loss
    return lambda outputs, targets: architecture.loss(outputs, targets).clone()


def build_optimizer(module: torch.nn.Module, settings: ParallelSpec) -> torch.optim.Optimizer:
    """Build the workload's optimizer over all parameters, at torch's defaults."""
    name, _, kernels = settings.workload.optimizer.partition("-")
    parameters = list(module.parameters())
    return _OPTIMIZERS[name](parameters, lr=settings.learning_rate, **_KERNELS[kernels])


def clip_gradients(optimizer: torch.optim.Optimizer, max_norm: float) -> torch.Tensor:
    """Scale the reduced gradients down to this norm; returns the norm before."""
    if isinstance(optimizer, ShardedOptimizer):
        return optimizer.clip_grad_norm_(max_norm)
    parameters = [one for group in optimizer.param_groups for one in group["params"]]
    return torch.nn.utils.clip_grad_norm_(parameters, max_norm)


def _unobserved(phase: StepPhase | None) -> None:
    """Phase callback of a timed step: it does nothing."""


def accumulate_gradients(
    model: ParallelModel,
    loss_function: LossFunction,
    batches: Iterable[Batch],
    count: int,
    amp: AmpState,
    *,
    sync: bool = True,
    enter: Enter = _unobserved,
) -> list[torch.Tensor]:
    """Add up the gradients of `count` micro-batches, and reduce them with the last one.

    Returns the mean loss of each, on its device, without waiting for it. Without `sync` nothing is
    reduced.
    """
    losses = []
    for number, batch in enumerate(batches, start=1):
        if not sync:
            reduction = model.without_sync()
        else:
            reduction = nullcontext() if number == count else model.no_sync()
        with reduction:
            enter("forward")
            with amp.autocast:
                loss = loss_function(model.forward(batch.inputs), batch.targets)
            weighted = loss if batch.weight == 1.0 else loss * batch.weight
            enter("backward")
            model.backward(amp.scaler.scale(weighted))
        losses.append(loss.detach())
    return losses


class Trainer:
    """Makes steps on prepared batches; keeps the losses on the device until they are read."""

    def __init__(
        self,
        model: ParallelModel,
        optimizer: torch.optim.Optimizer,
        loss_function: LossFunction,
        load: LoadBatch,
        amp: AmpState = FLOAT32,
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self._load = load
        self.amp = amp
        self.losses: list[torch.Tensor] = []
        self.steps = 0
        """Number of steps so far, without those that left out synchronization."""
        self._loss = loss_function

    def step(
        self, batches: Sequence[torch.Tensor], *, sync: bool = True, enter: Enter = _unobserved
    ) -> None:
        """Make one optimizer step over `batches`, the sample indices of each of its micro-steps."""
        enter("optimizer")
        self.optimizer.zero_grad()
        losses = accumulate_gradients(
            self.model,
            self._loss,
            self._loaded(batches, enter),
            len(batches),
            self.amp,
            sync=sync,
            enter=enter,
        )
        enter("optimizer")
        self.amp.step(self.optimizer)
        # torch.stack().mean() would add kernels to every timed step of one micro-step.
        self.losses.append(losses[0] if len(losses) == 1 else torch.stack(losses).mean())
        if sync:
            self.steps += 1
            enter("backward")  # where communication is counted, see measure.instruments
            self.model.after_step(self.steps)
        enter(None)

    def _loaded(self, batches: Sequence[torch.Tensor], enter: Enter) -> Iterator[Batch]:
        weight = self.model.loss_weight / len(batches)
        for indices in batches:
            enter("data")
            yield Batch(*self._load(indices), weight, len(indices))

    def take_losses(self) -> tuple[float, ...]:
        """Mean losses of the steps since the last call. It synchronizes: not for timed windows."""
        # A loss of shape (1,) has a backward pass too.
        losses = torch.stack(self.losses).flatten().tolist() if self.losses else []
        self.losses.clear()
        return tuple(losses)

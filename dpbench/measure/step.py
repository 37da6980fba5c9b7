"""One training step of one rank, the same for every implementation.

`accumulate_gradients` is the step up to the optimizer: a timed step of a benchmark and a step of
`dpbench train` both make it, so that what is measured is what trains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from typing import Literal

import torch

from dpbench.data.batch import Samples
from dpbench.data.loading import Batch
from dpbench.measure.rank_model import RankModel

StepPhase = Literal["data", "forward", "backward", "optimizer"]
EnterPhase = Callable[[StepPhase | None], None]
"""Called at every change of phase within a step, and with None at its end."""

LoadBatch = Callable[[torch.Tensor], tuple[Samples, Samples]]
"""Gives inputs and targets of the samples at some indices, on the device, in the model's layout."""


def _unobserved(phase: StepPhase | None) -> None:
    """Phase callback of a timed step: it does nothing."""


def accumulate_gradients(
    rank_model: RankModel,
    batches: Iterable[Batch],
    count: int,
    *,
    sync: bool = True,
    enter: EnterPhase = _unobserved,
) -> list[torch.Tensor]:
    """Add up the gradients of `count` micro-batches, and reduce them with the last one.

    Returns the mean loss of each, on its device, without waiting for it. Without `sync` nothing is
    reduced.
    """
    model, amp, losses = rank_model.model, rank_model.amp, []
    for number, batch in enumerate(batches, start=1):
        if not sync:
            reduction = model.without_sync()
        else:
            reduction = nullcontext() if number == count else model.no_sync()
        with reduction:
            enter("forward")
            with amp.autocast:
                loss = rank_model.loss(model.forward(batch.inputs), batch.targets)
            weighted = loss if batch.weight == 1.0 else loss * batch.weight
            enter("backward")
            model.backward(amp.scaler.scale(weighted))
        losses.append(loss.detach())
    return losses


class Trainer:
    """Makes steps on prepared batches; keeps the losses on the device until they are read."""

    def __init__(self, rank_model: RankModel, load: LoadBatch) -> None:
        self.rank_model = rank_model
        self._load = load
        self.losses: list[torch.Tensor] = []
        self.steps = 0
        """Number of steps so far, without those that left out synchronization."""

    def step(
        self, batches: Sequence[torch.Tensor], *, sync: bool = True, enter: EnterPhase = _unobserved
    ) -> None:
        """Make one optimizer step over `batches`, the sample indices of each of its micro-steps."""
        own = self.rank_model
        enter("optimizer")
        own.optimizer.zero_grad()
        loaded = self._loaded(batches, enter)
        losses = accumulate_gradients(own, loaded, len(batches), sync=sync, enter=enter)
        enter("optimizer")
        own.amp.step(own.optimizer)
        # torch.stack().mean() would add kernels to every timed step of one micro-step.
        self.losses.append(losses[0] if len(losses) == 1 else torch.stack(losses).mean())
        if sync:
            self.steps += 1
            enter("backward")  # where communication is counted, see measure.instruments
            own.model.after_step(self.steps)
        enter(None)

    def _loaded(self, batches: Sequence[torch.Tensor], enter: EnterPhase) -> Iterator[Batch]:
        weight = self.rank_model.model.loss_weight / len(batches)
        for indices in batches:
            enter("data")
            yield Batch(*self._load(indices), weight, len(indices))

    def take_losses(self) -> tuple[float, ...]:
        """Mean losses of the steps since the last call. It synchronizes: not for timed windows."""
        # A loss of shape (1,) has a backward pass too.
        losses = torch.stack(self.losses).flatten().tolist() if self.losses else []
        self.losses.clear()
        return tuple(losses)

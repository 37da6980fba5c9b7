"""The step that a benchmark times: one optimizer step on the samples at given indices.

While steps are timed, nothing is printed, logged, read back from the device or garbage-collected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace

import torch

from dpbench.data.batch import Batch, Samples
from dpbench.measure.device import forked_random
from dpbench.measure.rank_model import RankModel
from dpbench.measure.window import SegmentTimer, between_barriers
from dpbench.records.trial import Mode, Window
from dpbench.rendezvous.process_group import RankGroup

ALONE = RankGroup()


class BenchmarkStepper:
    """Takes and times the optimizer steps of a benchmark with one rank's model."""

    def __init__(
        self,
        model: RankModel,
        load: Callable[[torch.Tensor], tuple[Samples, Samples]],
        weight: float = 1.0,
        devices: Sequence[torch.device] = (torch.device("cpu"),),
        ranks: RankGroup = ALONE,
    ) -> None:
        """`load` gives inputs and targets of the samples at some indices, on the device; `weight`
        is the rank's `averaging_weight`; `devices` are those of this process, and `ranks` all that
        step together."""
        self.model, self.devices, self.ranks = model, devices, ranks
        self._load, self._weight = load, weight
        self.steps = 0
        """Number of steps so far, without unsynced ones."""

    def step(self, indices: Sequence[torch.Tensor], *, unsynced: bool = False) -> torch.Tensor:
        """Take one optimizer step; returns its mean loss, on the device, without waiting for it.

        `indices` are those of the samples of each micro-step, int64 (samples,). If `unsynced`,
        nothing is exchanged with other ranks, and the gradients are wrong.
        """
        batches, micro_steps = self._loaded(indices), len(indices)
        losses, _ = self.model.step(batches, self.steps, micro_steps=micro_steps, unsynced=unsynced)
        self.steps += not unsynced
        # torch.stack().mean() would add kernels to every timed step of one micro-step.
        return losses[0] if micro_steps == 1 else torch.stack(losses).mean()

    def _loaded(self, indices: Sequence[torch.Tensor]) -> Iterator[Batch]:
        weight = self._weight / len(indices)
        for micro_step in indices:
            self.model.clock.enter("data")
            yield Batch(*self._load(micro_step), weight, len(micro_step))

    def time(self, steps: Sequence[Sequence[torch.Tensor]], mode: Mode = "timed") -> Window:
        """Take a segment of steps between two barriers, and time each on the first device; it ends
        when all devices are idle. Unsynced steps are undone: replicas must not drift apart."""
        unsynced, losses = mode == "unsynced", []
        samples = sum(len(micro_step) for indices in steps for micro_step in indices)
        with (
            undone(self.model, self.devices) if unsynced else nullcontext(),
            between_barriers(self.devices, self.ranks),
        ):
            timer = SegmentTimer(self.devices)
            for indices in steps:
                losses.append(self.step(indices, unsynced=unsynced))
                timer.step_ended()
            window = timer.end(samples)
        # A loss of shape (1,) has a backward pass too.
        return replace(window, losses=tuple(torch.stack(losses).flatten().tolist()))


@contextmanager
def undone(model: RankModel, devices: Sequence[torch.device]) -> Iterator[None]:
    """A context whose steps leave no trace in parameters, buffers, optimizer, loss scale and random
    state.

    Copies wait in host memory and are written back in place, as the device may have no room for a
    second state of the optimizer.
    """
    states, scaler = model.optimizer.state, model.scaler
    stepped = set(states)
    tensors = [*model.module.parameters(), *model.module.buffers()]
    for state in states.values():  # torch's optimizers keep nothing but tensors there
        tensors += [value for value in state.values() if isinstance(value, torch.Tensor)]
    saved = [tensor.detach().to("cpu", copy=True) for tensor in tensors]
    scaler_state = scaler.state_dict()
    with forked_random(*devices):
        yield
    with torch.no_grad():
        for tensor, before in zip(tensors, saved, strict=True):
            tensor.copy_(before)
    for parameter in {*states} - stepped:  # stepped for the first time
        del states[parameter]
    scaler.load_state_dict(scaler_state)

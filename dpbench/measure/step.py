"""The step that a benchmark times: one optimizer step on the samples at given indices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from dpbench.data.batch import Batch, Samples
from dpbench.measure.rank_model import RankModel
from dpbench.rendezvous.process_group import RankGroup

ALONE = RankGroup()


class BenchmarkStepper:
    """Takes the optimizer steps of a benchmark with one rank's model."""

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

"""Reference computation in one process without parallelism, for the proof of gradients."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from dpbench.measure.implementations import ParallelModel, Plain, averaging_weight
from dpbench.measure.training import Trainer
from dpbench.specs import TrialSpec
from dpbench.traits import IMPLEMENTATIONS

MakeTrainer = Callable[[ParallelModel, torch.nn.Module], Trainer]


class Reference(Protocol):
    """Plain modules that make the steps of a whole group."""

    module: torch.nn.Module
    """The module whose gradients this rank must have."""

    def step(self, batches: Sequence[torch.Tensor]) -> None:
        """Make a step on the global batch of each micro-step."""
        ...


def reference(
    module: torch.nn.Module, trial: TrialSpec, rank: int, trainer: MakeTrainer
) -> Reference:
    """The reference for the trial's implementation; it trains copies of `module`, which stays
    unchanged."""
    traits = IMPLEMENTATIONS[trial.implementation]
    if traits.averages_parameters:
        return _LocalReplicas(module, trial, rank, trainer)
    shard = (0, trial.global_batch_size) if traits.communicates else trial.process_shard(rank)
    return _OneModule(module, shard, trainer)


class _OneModule:
    """One copy on the whole global batch, or on one rank's shard of it."""

    def __init__(
        self, module: torch.nn.Module, shard: tuple[int, int], trainer: MakeTrainer
    ) -> None:
        self.module = copy.deepcopy(module)
        self._shard = shard
        self._trainer = trainer(Plain(self.module), self.module)

    def step(self, batches: Sequence[torch.Tensor]) -> None:
        self._trainer.step([batch.narrow(0, *self._shard) for batch in batches])


class _LocalReplicas:
    """A copy for each rank on its own shard; every few steps their parameters are averaged."""

    def __init__(
        self, module: torch.nn.Module, trial: TrialSpec, rank: int, trainer: MakeTrainer
    ) -> None:
        self._trial = trial
        self._replicas = [copy.deepcopy(module) for _ in range(trial.group_size)]
        self.module = self._replicas[rank]
        self._trainers = [
            trainer(Plain(replica, averaging_weight(trial, number)), replica)
            for number, replica in enumerate(self._replicas)
        ]

    def step(self, batches: Sequence[torch.Tensor]) -> None:
        for number, trainer in enumerate(self._trainers):
            shard = self._trial.process_shard(number)
            trainer.step([batch.narrow(0, *shard) for batch in batches])
        if trainer.steps % self._trial.sync_every == 0:
            self._average()

    @torch.no_grad()
    def _average(self) -> None:
        for copies in zip(*(replica.parameters() for replica in self._replicas), strict=True):
            mean = torch.stack([parameter.detach() for parameter in copies]).mean(dim=0)
            for parameter in copies:
                parameter.copy_(mean)

"""One process that takes the steps of a whole group, for the proof of gradients to compare with."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import suppress

import torch

from dpbench.measure.implementations import ParallelModel, Plain, averaging_weight
from dpbench.measure.step import Trainer
from dpbench.specs import TrialSpec
from dpbench.specs.traits import IMPLEMENTATIONS

MakeTrainer = Callable[[ParallelModel, torch.nn.Module], Trainer]
Gradients = list[torch.Tensor | None]


class _Stop(BaseException):
    """Ends a step at the place where gradients are reduced. The user's code must not catch it."""


class _Reduced(Plain):
    """The plain module; where ranks would reduce their gradients, a step takes `average` or, while
    that is not known, ends."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__(module)
        self.average: Gradients | None = None
        self._unreduced = False

    def backward(self, loss: torch.Tensor) -> None:
        super().backward(loss)
        self._unreduced = True

    def finish(self) -> None:
        if not self._unreduced:
            return
        self._unreduced = False
        if self.average is None:
            raise _Stop
        set_gradients(self.module, self.average)


def set_gradients(module: torch.nn.Module, gradients: Gradients) -> None:
    """Give each parameter a copy of its gradient."""
    for parameter, gradient in zip(module.parameters(), gradients, strict=True):
        parameter.grad = None if gradient is None else gradient.clone()


def _added(total: torch.Tensor | None, gradient: torch.Tensor | None) -> torch.Tensor | None:
    if total is None or gradient is None:
        return gradient if total is None else total
    return total + gradient


class ShardReference:
    """One module that takes the shards of all ranks in turn, and steps on their mean gradient.

    The step may be the user's, which clips reduced gradients and steps itself. So it is taken for
    every shard up to the reduction, and then once more, with the mean in place of the reduction.
    """

    def __init__(
        self, module: torch.nn.Module, trial: TrialSpec, rank: int, make_trainer: MakeTrainer
    ) -> None:
        self.module = copy.deepcopy(module)
        # The shards whose gradients are averaged, the rank's own first, each with its weight.
        self._shards = [(trial.process_shard(rank), 1.0)]
        if IMPLEMENTATIONS[trial.implementation].communicates and trial.process_count > 1:
            others = (number for number in range(trial.process_count) if number != rank)
            self._shards = [
                (trial.process_shard(number), averaging_weight(trial, number))
                for number in (rank, *others)
            ]
        self._model = _Reduced(self.module)
        self._trainer = make_trainer(self._model, self.module)

    def step(self, batches: Sequence[torch.Tensor]) -> None:
        """Take a step on the global batch of each micro-step."""
        before = [parameter.grad for parameter in self.module.parameters()]
        sums: Gradients = [None] * len(before)
        self._model.average = None
        for shard, weight in self._shards:
            set_gradients(self.module, before)
            self._model.loss_weight = weight
            with suppress(_Stop):
                self._trainer.step([batch.narrow(0, *shard) for batch in batches])
            parameters = zip(sums, self.module.parameters(), strict=True)
            sums = [_added(total, parameter.grad) for total, parameter in parameters]
        count = len(self._shards)
        self._model.average = [total if total is None else total / count for total in sums]
        first, _ = self._shards[0]
        self._trainer.step([batch.narrow(0, *first) for batch in batches])


class ReplicaReference:
    """A copy for each rank on its own shard; every few steps their parameters are averaged."""

    def __init__(
        self, module: torch.nn.Module, trial: TrialSpec, rank: int, make_trainer: MakeTrainer
    ) -> None:
        self._trial = trial
        self._replicas = [copy.deepcopy(module) for _ in range(trial.group_size)]
        self.module = self._replicas[rank]
        self._trainers = [
            make_trainer(Plain(replica, averaging_weight(trial, number)), replica)
            for number, replica in enumerate(self._replicas)
        ]

    def step(self, batches: Sequence[torch.Tensor]) -> None:
        """Take a step on the global batch of each micro-step."""
        for number, trainer in enumerate(self._trainers):
            shard = self._trial.process_shard(number)
            trainer.step([batch.narrow(0, *shard) for batch in batches])
        if trainer.steps % self._trial.sync_every == 0:
            with torch.no_grad():
                replicas = (replica.parameters() for replica in self._replicas)
                for copies in zip(*replicas, strict=True):
                    mean = torch.stack([parameter.detach() for parameter in copies]).mean(dim=0)
                    for parameter in copies:
                        parameter.copy_(mean)

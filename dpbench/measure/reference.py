"""One process that takes the steps of a whole group, for the proof of gradients to compare with."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch

from dpbench.measure.implementations import ParallelModel, Plain, averaging_weight
from dpbench.measure.step import Trainer
from dpbench.specs import TrialSpec
from dpbench.specs.traits import IMPLEMENTATIONS

GradientList = list[torch.Tensor | None]
MakeTrainer = Callable[[ParallelModel, torch.optim.Optimizer], Trainer]


class Unstepped(torch.optim.SGD):
    """An optimizer that leaves the parameters as they are."""

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        pass


class Reduced(Plain):
    """The plain module; `reduce` stands for the reduction of its gradients over the ranks."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__(module)
        self.reduce: Callable[[], object] = list
        self._reduces = True

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        outside, self._reduces = self._reduces, False
        yield
        self._reduces = outside

    def backward(self, loss: torch.Tensor) -> None:
        super().backward(loss)
        if self._reduces:
            self.reduce()


class ShardReference:
    """One module that takes the shards of all ranks in turn, and steps on their mean gradient.

    The step may be the user's, which clips reduced gradients and steps itself. So it is taken for
    every shard with an optimizer that changes nothing, to record the gradients at each reduction,
    and then once more, with their means in place of the reductions.
    """

    def __init__(
        self, module: torch.nn.Module, trial: TrialSpec, rank: int, make_trainer: MakeTrainer
    ) -> None:
        self.module = copy.deepcopy(module)
        self._parameters = [*self.module.parameters()]
        # The shards whose gradients are averaged, the rank's own first, each with its weight.
        self._shards = [(trial.process_shard(rank), 1.0)]
        if IMPLEMENTATIONS[trial.implementation].communicates and trial.process_count > 1:
            others = (number for number in range(trial.process_count) if number != rank)
            self._shards = [
                (trial.process_shard(number), averaging_weight(trial, number))
                for number in (rank, *others)
            ]
        self._model = Reduced(self.module)
        self._recorder = make_trainer(self._model, Unstepped(self._parameters))
        self._trainer = make_trainer(self._model, sgd(self.module, trial))

    def step(self, batches: Sequence[torch.Tensor]) -> None:
        """Take a step on the global batch of each micro-step."""
        before = [parameter.grad for parameter in self._parameters]
        means: list[GradientList] = []
        for shard, weight in self._shards:
            found: list[GradientList] = []
            self._model.reduce = partial(self._record, found)
            self._model.loss_weight = weight
            self._set_gradients(before)
            self._recorder.step([batch.narrow(0, *shard) for batch in batches])
            if not found:
                self._record(found)
            means = (
                [[*map(_sum, *pair)] for pair in zip(means, found, strict=True)] if means else found
            )
        reduced = iter(means)
        self._model.reduce = lambda: self._set_gradients(next(reduced))
        self._set_gradients(before)
        first, self._model.loss_weight = self._shards[0]
        self._trainer.step([batch.narrow(0, *first) for batch in batches])
        for gradients in reduced:  # the step never reduced, which has to show
            self._set_gradients(gradients)

    def _record(self, found: list[GradientList]) -> None:
        """Add the part that the gradients have in the mean over the shards."""
        gradients = [parameter.grad for parameter in self._parameters]
        found.append([None if one is None else one / len(self._shards) for one in gradients])

    def _set_gradients(self, gradients: GradientList) -> None:
        """Give each parameter a copy of its gradient."""
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            parameter.grad = None if gradient is None else gradient.clone()


def _sum(total: torch.Tensor | None, part: torch.Tensor | None) -> torch.Tensor | None:
    """Their sum; a gradient that is not there counts as zero."""
    if total is None or part is None:
        return part if total is None else total
    return total + part


class ReplicaReference:
    """A copy for each rank on its own shard; every few steps their parameters are averaged."""

    def __init__(
        self, module: torch.nn.Module, trial: TrialSpec, rank: int, make_trainer: MakeTrainer
    ) -> None:
        self._trial = trial
        self._replicas = [copy.deepcopy(module) for _ in range(trial.group_size)]
        self.module = self._replicas[rank]
        self._trainers = [
            make_trainer(Plain(replica, averaging_weight(trial, number)), sgd(replica, trial))
            for number, replica in enumerate(self._replicas)
        ]

    def step(self, batches: Sequence[torch.Tensor]) -> None:
        """Take a step on the global batch of each micro-step."""
        for number, trainer in enumerate(self._trainers):
            shard = self._trial.process_shard(number)
            trainer.step([batch.narrow(0, *shard) for batch in batches])
        if trainer.steps % self._trial.sync_every == 0:
            replicas = (replica.parameters() for replica in self._replicas)
            with torch.no_grad():
                for copies in zip(*replicas, strict=True):
                    mean = torch.stack(copies).mean(dim=0)
                    for parameter in copies:
                        parameter.copy_(mean)


def sgd(module: torch.nn.Module, trial: TrialSpec) -> torch.optim.Optimizer:
    """The optimizer of the proof, which carries a wrong gradient into the parameters."""
    return torch.optim.SGD(module.parameters(), lr=trial.learning_rate)

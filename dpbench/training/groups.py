"""The replicas of one run as a group, in this process: one after the other, or in threads."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Protocol

import torch
from torch import nn

from dpbench.parallel.dp.random_streams import ReplicaStreams
from dpbench.parallel.dp.workers import WorkerPool
from dpbench.training.gradients import set_mean, take_gradients
from dpbench.training.models import copy_state
from dpbench.training.replica import OwnProcess, OwnThread, Replica
from dpbench.training.result import Indices
from dpbench.training.settings import Settings, Task


class Group(Protocol):
    """What the training loop needs; in a process that does not lead, `losses` are empty."""

    models: Sequence[nn.Module]
    leads: bool
    """Whether replica 0, which the optimizer steps, is here."""

    def backward(self, iteration: int, samples: Indices) -> list[float]:
        """Every replica's gradients of its samples; returns their losses."""
        ...

    def reduce(self) -> None:
        """Replica 0 has the mean gradient, the others have none."""
        ...

    def broadcast(self) -> bool:
        """All replicas have the parameters and buffers of replica 0; False: it has given up."""
        ...

    def close(self) -> None: ...


class Sequential:
    """One replica after the other: slow and simple, the reference for the other modes."""

    leads = True

    def __init__(
        self,
        models: Sequence[nn.Module],
        settings: Settings,
        task: Task,
        generators: Sequence[torch.Generator],
    ) -> None:
        self.models = models
        streams = [OwnProcess(generator) for generator in generators]
        parts = enumerate(zip(models, settings.devices, streams, strict=True))
        self.replicas = [Replica(i, *part, task) for i, part in parts]

    def backward(self, iteration: int, samples: Indices) -> list[float]:
        pairs = zip(self.replicas, samples, strict=True)
        return [replica.backward(iteration, mine) for replica, mine in pairs]

    def reduce(self) -> None:
        set_mean(self.models[0], [take_gradients(model) for model in self.models])

    def broadcast(self) -> bool:
        copy_state(self.models[0], self.models[1:])
        return True

    def close(self) -> None:
        """Nothing is held."""


class Threads(Sequential):
    """A thread per replica; each has an equal part of the intra-op threads."""

    def __init__(
        self,
        models: Sequence[nn.Module],
        settings: Settings,
        task: Task,
        generators: Sequence[torch.Generator],
    ) -> None:
        self.models = models
        streams = ReplicaStreams(generators)
        self.replicas = [
            Replica(i, model, device, OwnThread(streams, i), task)
            for i, (model, device) in enumerate(zip(models, settings.devices, strict=True))
        ]
        self._workers = WorkerPool(settings.devices)

    def backward(self, iteration: int, samples: Indices) -> list[float]:
        jobs = {
            i: partial(replica.backward, iteration, mine)
            for i, (replica, mine) in enumerate(zip(self.replicas, samples, strict=True))
        }
        return [loss for _, loss in sorted(self._workers.run(jobs).items())]

    def close(self) -> None:
        self._workers.close()

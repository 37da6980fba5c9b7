"""The replicas of `dp_train` in this process: one after the other, or each in a thread.

`processes` runs them in separate processes. All modes sum gradients in the order of the replicas,
so that they give the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from dpbench.parallel.dp.random_streams import ReplicaStreams
from dpbench.parallel.dp.workers import WorkerPool
from dpbench.training.dp_train.arguments import DpTrainArguments, Task
from dpbench.training.dp_train.models import copy_state, set_mean, take_gradients
from dpbench.training.dp_train.result import Indices


class Group(Protocol):
    """The interface that the training loop needs; in a process that does not lead, `losses` are
    empty."""

    models: Sequence[nn.Module]
    leads: bool
    """Whether replica 0, which the optimizer steps, is here."""

    def backward(self, iteration: int, samples: Indices) -> list[float]:
        """Compute every replica's gradients on its samples; returns their losses."""
        ...

    def reduce(self) -> None:
        """Give replica 0 the mean gradient, and clear the others'."""
        ...

    def broadcast(self) -> bool:
        """Copy replica 0's parameters and buffers to all replicas; returns False if it has given
        up."""
        ...

    def close(self) -> None: ...


class Sequential:
    """One replica after the other: slow and simple, the reference for the other modes."""

    leads = True

    def __init__(
        self,
        models: Sequence[nn.Module],
        arguments: DpTrainArguments,
        task: Task,
        generators: Sequence[torch.Generator],
    ) -> None:
        self.models = models
        streams = [DefaultGeneratorStream(generator) for generator in generators]
        parts = enumerate(zip(models, arguments.devices, streams, strict=True))
        self.replicas = [TrainedReplica(i, *part, task) for i, part in parts]

    def backward(self, iteration: int, samples: Indices) -> list[float]:
        pairs = zip(self.replicas, samples, strict=True)
        return [replica.backward(iteration, mine) for replica, mine in pairs]

    def reduce(self) -> None:
        set_mean(self.models[0], [take_gradients(model) for model in self.models])

    def broadcast(self) -> bool:
        copy_state(self.models[0], self.models[1:])
        return True

    def close(self) -> None:
        """Do nothing: there are no resources to release."""


class Threads(Sequential):
    """A thread per replica; each has an equal part of the intra-op threads."""

    def __init__(
        self,
        models: Sequence[nn.Module],
        arguments: DpTrainArguments,
        task: Task,
        generators: Sequence[torch.Generator],
    ) -> None:
        self.models = models
        streams = ReplicaStreams(generators)
        self.replicas = [
            TrainedReplica(i, model, device, _ThreadStream(streams, i), task)
            for i, (model, device) in enumerate(zip(models, arguments.devices, strict=True))
        ]
        self._workers = WorkerPool(arguments.devices)

    def backward(self, iteration: int, samples: Indices) -> list[float]:
        jobs = {
            i: partial(replica.backward, iteration, mine)
            for i, (replica, mine) in enumerate(zip(self.replicas, samples, strict=True))
        }
        return [loss for _, loss in sorted(self._workers.run(jobs).items())]

    def close(self) -> None:
        self._workers.close()


@dataclass(frozen=True, slots=True)
class TrainedReplica:
    """A model, its device, and its source of random numbers."""

    index: int
    model: nn.Module
    device: torch.device
    stream: _Stream
    task: Task

    def backward(self, iteration: int, samples: tuple[int, ...]) -> float:
        """Add the gradient of the mean loss of the samples; returns that loss.

        Raises:
            ValueError, TypeError: a loss is no scalar tensor with a gradient; the message has the
                iteration, replica and sample.
        """
        total = 0.0
        for sample in samples:
            with self.stream.forward():
                loss = self.task.loss(self.model, sample, self.device)
            self._check(loss, f"in iteration {iteration}, replica {self.index}, sample {sample}")
            with self.stream.backward():
                (loss / len(samples)).backward()
            total += loss.item()
        return total / len(samples)

    def _check(self, loss: Any, where: str) -> None:
        if not isinstance(loss, Tensor):
            raise TypeError(f"got the loss {loss!r} {where}, expected a tensor; give loss_fn?")
        if loss.numel() != 1:
            raise ValueError(
                f"got a loss of shape {tuple(loss.shape)} {where}, expected a scalar; reduce it"
            )
        if not loss.requires_grad:
            raise ValueError(f"got a loss without a gradient {where}; it must depend on the model")


class _Stream(Protocol):
    """The random numbers of one replica: contexts for its forward and its backward."""

    def forward(self) -> AbstractContextManager[Any]: ...

    def backward(self) -> AbstractContextManager[Any]: ...


@dataclass(frozen=True, slots=True)
class DefaultGeneratorStream:
    """Random numbers for replicas that do not run at the same time: each gets the default generator
    in turn."""

    generator: torch.Generator

    def forward(self) -> AbstractContextManager[None]:
        return _lent_to(self.generator)

    backward = forward


@dataclass(frozen=True, slots=True)
class _ThreadStream:
    """Random numbers for replicas that run at the same time."""

    streams: ReplicaStreams
    replica: int

    def forward(self) -> AbstractContextManager[Any]:
        return self.streams.entered(self.replica)

    def backward(self) -> AbstractContextManager[Any]:
        return self.streams.entered_backward()


@contextmanager
def _lent_to(generator: torch.Generator) -> Iterator[None]:
    before = torch.get_rng_state()
    torch.set_rng_state(generator.get_state())
    try:
        yield
    finally:
        generator.set_state(torch.get_rng_state())
        torch.set_rng_state(before)

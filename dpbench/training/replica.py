"""One replica's part of a step, the same in every mode."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from dpbench.parallel.dp.random_streams import ReplicaStreams
from dpbench.training.settings import Task


class Stream(Protocol):
    """The random numbers of one replica: contexts for its forward and its backward."""

    def forward(self) -> AbstractContextManager[Any]: ...

    def backward(self) -> AbstractContextManager[Any]: ...


@dataclass(frozen=True, slots=True)
class OwnProcess:
    """For replicas that do not run at the same time: the default generator is lent to each."""

    generator: torch.Generator

    def forward(self) -> AbstractContextManager[None]:
        return _lent_to(self.generator)

    backward = forward


@dataclass(frozen=True, slots=True)
class OwnThread:
    """For replicas that run at the same time."""

    streams: ReplicaStreams
    replica: int

    def forward(self) -> AbstractContextManager[Any]:
        return self.streams.entered(self.replica)

    def backward(self) -> AbstractContextManager[Any]:
        return self.streams.entered_backward()


@dataclass(frozen=True, slots=True)
class Replica:
    """A model, where it is, and what it draws its random numbers from."""

    index: int
    model: nn.Module
    device: torch.device
    stream: Stream
    task: Task

    def backward(self, iteration: int, samples: tuple[int, ...]) -> float:
        """Add the gradient of the mean loss of the samples; returns that loss.

        Raises:
            ValueError, TypeError: a loss that is no scalar tensor with a gradient, with the
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


def generators(seed: int, replicas: int) -> list[torch.Generator]:
    """One for the order of the samples, then one per replica."""
    root = torch.Generator().manual_seed(seed)
    seeds = torch.randint(2**62, (1 + replicas,), generator=root).tolist()
    return [torch.Generator().manual_seed(each) for each in seeds]


@contextmanager
def _lent_to(generator: torch.Generator) -> Iterator[None]:
    before = torch.get_rng_state()
    torch.set_rng_state(generator.get_state())
    try:
        yield
    finally:
        generator.set_state(torch.get_rng_state())
        torch.set_rng_state(before)

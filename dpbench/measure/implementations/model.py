"""The interface of all implementations: a module that is called, and then has its gradients.

An implementation subclasses `ParallelModel` and overrides what it does differently from the plain
module: usually `no_sync`, and `communication` where it counts its messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch

from dpbench.data.batch import Samples, call
from dpbench.parallel.dp.phases import Phase


class Settings(Protocol):
    """The part of a TrialSpec or a TrainingSpec that an implementation needs to wrap a module."""

    @property
    def implementation(self) -> str: ...

    @property
    def devices(self) -> tuple[str, ...]: ...

    @property
    def threads_per_replica(self) -> int: ...

    @property
    def replica_batch_sizes(self) -> Sequence[int]: ...

    @property
    def bucket_cap_mb(self) -> float | None: ...

    @property
    def sync_every(self) -> int: ...

    @property
    def comm_hook(self) -> str: ...

    @property
    def overlap(self) -> str: ...


ReplicaSeconds = Mapping[Phase, float]
ReplicaClock = Callable[[], ReplicaSeconds | None]


@dataclass(frozen=True, slots=True)
class Communication:
    """Running totals of the reduced bytes and of the collectives."""

    bytes: int
    collectives: int


@dataclass(slots=True)
class ParallelModel:
    """A module that some implementation spreads over replicas; without overrides, the module
    itself.

    `forward` takes this process's samples and returns the outputs for the mean loss. A micro-step
    inside `no_sync` only adds to the gradients that a later one reduces.
    """

    module: torch.nn.Module
    loss_weight: float = 1.0
    """Factor of this process's mean loss in the backward pass: n_r·W/N if ranks average."""
    rehearsals: ClassVar[int] = 0
    """Number of first backward passes that may sum gradients in another order than later ones."""

    def optimizer(self, plain: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """The optimizer to step with, instead of one over all parameters; called once."""
        return plain

    def forward(self, inputs: Samples) -> Any:
        return call(self.module, inputs)

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradients of `loss`, this process's mean loss times its weight."""
        loss.backward()  # type: ignore[no-untyped-call]

    def no_sync(self) -> AbstractContextManager[None]:
        return nullcontext()

    def without_sync(self) -> AbstractContextManager[None]:
        """A context only for timing: steps in it exchange nothing and have wrong gradients."""
        return self.no_sync()

    def finish(self) -> None:
        """Return when the gradients are ready for the optimizer."""

    def clip_grad_norm_(self, max_norm: float) -> torch.Tensor:
        """Scale the reduced gradients down to this norm; returns the norm before."""
        return torch.nn.utils.clip_grad_norm_(self.module.parameters(), max_norm)

    def after_step(self) -> None:
        """Do what follows a step of the optimizer."""

    def settle(self) -> None:
        """Make the parameters equal on all ranks, after the last step."""

    def continue_from(self, steps: int) -> None:
        """Restore the step count, before the first step of a model saved after `steps` steps."""

    def communication(self) -> Communication | None:
        """Bytes and collectives so far; None if the implementation does not report them."""
        return Communication(bytes=0, collectives=0)

    def replica_clock(self) -> AbstractContextManager[ReplicaClock]:
        """A clock for instrumented steps: running totals of the work for the replicas; None if the
        implementation does not drive them all, or does not report it."""
        return nullcontext(lambda: None)


class Plain(ParallelModel):
    """The module itself: `single`, and every copy of `independent`."""


class Unreported(ParallelModel):
    """A module whose implementation does not report what it communicates."""

    def communication(self) -> Communication | None:
        return None


@contextmanager
def threads_kept() -> Iterator[None]:
    """A context that restores the trial's number of threads per replica, which libraries set."""
    threads = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def averaging_weight(settings: Settings, rank: int) -> float:
    """The weight n_r·W/N, which turns the plain mean over ranks into the mean over samples when
    shards differ."""
    sizes = settings.replica_batch_sizes
    return sizes[rank] * len(sizes) / sum(sizes)


def device_ids(settings: Settings, rank: int) -> list[torch.device] | None:
    """The `device_ids` of a DistributedDataParallel: this rank's device, None for the CPU."""
    device = torch.device(settings.devices[rank])
    return None if device.type == "cpu" else [device]

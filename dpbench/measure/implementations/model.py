"""The interface of all implementations: a module that is called, and then has its gradients.

`forward` takes this process's samples and returns the outputs for the mean loss; a micro-step
inside `no_sync` only adds to the gradients that a later one reduces; `finish` returns when the
gradients are ready for the optimizer.
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


class ParallelModel(Protocol):
    """A module that some implementation spreads over replicas."""

    loss_weight: float
    """Factor of this process's mean loss in the backward pass: n_r·W/N if ranks average."""

    @property
    def rehearsals(self) -> int:
        """Number of first backward passes that may sum gradients in another order than later
        ones."""
        ...

    def optimizer(self, plain: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """The optimizer to step with, in the place of one over all parameters; called once."""
        ...

    def forward(self, inputs: Samples) -> Any: ...

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradients of `loss`, this process's mean loss, times its weight."""
        ...

    def no_sync(self) -> AbstractContextManager[None]: ...

    def without_sync(self) -> AbstractContextManager[None]:
        """A context only for timing: steps in it exchange nothing and have wrong gradients."""
        ...

    def finish(self) -> None: ...

    def clip_grad_norm_(self, max_norm: float) -> torch.Tensor:
        """Scale the reduced gradients down to this norm; returns the norm before."""
        ...

    def after_step(self) -> None:
        """Call this when the optimizer has changed the parameters."""
        ...

    def show_gradients(self) -> None:
        """Put the gradients of the last step into `.grad` of every parameter, for the proof; the
        next step drops them."""
        ...

    def settle(self) -> None:
        """Make the parameters equal on all ranks, after the last step."""
        ...

    def continue_from(self, steps: int) -> None:
        """Restore the step count, before the first step of a model saved after `steps` steps."""
        ...

    def communication(self) -> Communication | None:
        """Bytes and collectives so far; None if the implementation does not report them."""
        ...

    def replica_clock(self) -> AbstractContextManager[ReplicaClock]:
        """A clock for instrumented steps: running totals of the work for the replicas; None if the
        implementation does not drive them all, or does not report it."""
        ...


@dataclass(frozen=True, slots=True)
class Communication:
    """Running totals of the reduced bytes and of the collectives."""

    bytes: int
    collectives: int


@dataclass(slots=True)
class Plain:
    """The module itself: `single`, and every copy of `independent`."""

    module: torch.nn.Module
    loss_weight: float = 1.0
    rehearsals: ClassVar[int] = 0

    def optimizer(self, plain: torch.optim.Optimizer) -> torch.optim.Optimizer:
        return plain

    def forward(self, inputs: Samples) -> Any:
        return call(self.module, inputs)

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()  # type: ignore[no-untyped-call]

    def no_sync(self) -> AbstractContextManager[None]:
        return nullcontext()

    def without_sync(self) -> AbstractContextManager[None]:
        return self.no_sync()

    def finish(self) -> None:
        """Do nothing: gradients are ready as soon as backward returns."""

    def clip_grad_norm_(self, max_norm: float) -> torch.Tensor:
        return torch.nn.utils.clip_grad_norm_(self.module.parameters(), max_norm)

    def after_step(self) -> None:
        """Do nothing: with equal gradients, equal parameters stay equal."""

    def show_gradients(self) -> None:
        """Do nothing: gradients stay where they are."""

    def settle(self) -> None:
        """Do nothing: no work is deferred."""

    def continue_from(self, steps: int) -> None:
        """Do nothing: no step depends on its number."""

    def communication(self) -> Communication | None:
        return Communication(bytes=0, collectives=0)

    def replica_clock(self) -> AbstractContextManager[ReplicaClock]:
        return nullcontext(lambda: None)


class Unreported(Plain):
    """A module whose implementation does not report what it communicates."""

    def communication(self) -> Communication | None:
        return None


class Composable(Unreported):
    """A module changed in place by torch's composable parallelism: the module itself is still
    called, and has a switch for the reduction of its gradients."""

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        self.module.set_requires_gradient_sync(False)  # type: ignore[operator]
        try:
            yield
        finally:
            self.module.set_requires_gradient_sync(True)  # type: ignore[operator]


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

"""What every implementation is to the rest: a module that is called, and then has its gradients.

`forward` takes this process's samples and returns the outputs to compute the mean loss from; a
micro-step inside `no_sync` only adds to the gradients that a later one reduces; `finish` returns
when the gradients are ready for the optimizer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch

from dpbench.data.batch import Samples, call
from dpbench.parallel.dp.phases import Phase


class Settings(Protocol):
    """What a spec must say to have a module wrapped: a TrialSpec or a TrainingSpec."""

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
    """Factor of this process's mean loss in the backward pass: n_r·W/N where ranks average."""

    @property
    def rehearsals(self) -> int:
        """Backward passes before the first that adds up gradients in the order of later ones."""
        ...

    def forward(self, inputs: Samples) -> Any: ...

    def backward(self, loss: torch.Tensor) -> None:
        """Adds to the gradients those of `loss`, this process's mean loss times its weight."""
        ...

    def no_sync(self) -> AbstractContextManager[None]: ...

    def without_sync(self) -> AbstractContextManager[None]:
        """Only for timing: steps inside exchange nothing, and their gradients are wrong."""
        ...

    def finish(self) -> None: ...

    def after_step(self) -> None:
        """Called when the optimizer has changed the parameters."""
        ...

    def settle(self) -> None:
        """After the last step: leaves the same parameters on all ranks."""
        ...

    def continue_from(self, steps: int) -> None:
        """Before the first step of a model that had made `steps` of them before it was saved."""
        ...

    def communication(self) -> Communication | None:
        """Bytes and collectives so far; None where the implementation does not tell."""
        ...

    def replica_clock(self) -> AbstractContextManager[ReplicaClock]:
        """For instrumented steps: running totals of what is done for the replicas; None where the
        implementation does not drive them all, or does not tell."""
        ...


@dataclass(frozen=True, slots=True)
class Communication:
    """Running totals of what was reduced."""

    bytes: int
    collectives: int


@dataclass(slots=True)
class Plain:
    """The module itself: `single`, and every copy of `independent`."""

    module: torch.nn.Module
    loss_weight: float = 1.0
    rehearsals: ClassVar[int] = 0

    def forward(self, inputs: Samples) -> Any:
        return call(self.module, inputs)

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()  # type: ignore[no-untyped-call]

    def no_sync(self) -> AbstractContextManager[None]:
        return nullcontext()

    def without_sync(self) -> AbstractContextManager[None]:
        return self.no_sync()

    def finish(self) -> None:
        """Gradients are ready as soon as backward returns."""

    def after_step(self) -> None:
        """Equal gradients have kept equal parameters equal."""

    def settle(self) -> None:
        """Nothing is put off."""

    def continue_from(self, steps: int) -> None:
        """No step depends on its number."""

    def communication(self) -> Communication | None:
        return Communication(bytes=0, collectives=0)

    def replica_clock(self) -> AbstractContextManager[ReplicaClock]:
        return nullcontext(lambda: None)


def averaging_weight(settings: Settings, rank: int) -> float:
    """n_r·W/N: makes the plain mean over ranks the mean over samples when shards differ."""
    sizes = settings.replica_batch_sizes
    return sizes[rank] * len(sizes) / sum(sizes)


def device_ids(settings: Settings, rank: int) -> list[torch.device] | None:
    """The `device_ids` of a DistributedDataParallel: this rank's device, None for the CPU."""
    device = torch.device(settings.devices[rank])
    return None if device.type == "cpu" else [device]

"""The implementations behind one interface: forward, no_sync, finish.

Each entry wraps a module for one rank. `forward` takes this process's samples and returns the
outputs to compute the mean loss from; a micro-step inside `no_sync` only adds to the gradients
that a later one reduces; `finish` returns when the gradients are ready for the optimizer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch

from dpbench import parallel
from dpbench.parallel.local_sgd import LocalSGD


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


class ParallelModel(Protocol):
    """A module that some implementation spreads over replicas."""

    loss_weight: float
    """Factor of this process's mean loss in the backward pass: n_r·W/N where ranks average."""

    @property
    def rehearsals(self) -> int:
        """Backward passes before the first that adds up gradients in the order of later ones."""
        ...

    def forward(self, inputs: torch.Tensor) -> torch.Tensor: ...

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

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.module(inputs)  # type: ignore[no-any-return]

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


class OurDistributedDataParallel(Plain):
    """dpbench.DistributedDataParallel: backward returns with averaged gradients."""

    module: parallel.DistributedDataParallel

    def no_sync(self) -> AbstractContextManager[None]:
        return self.module.no_sync()

    def communication(self) -> Communication | None:
        return Communication(self.module.reduced_bytes, self.module.reductions)


class TorchDistributedDataParallel(Plain):
    """torch.nn.parallel.DistributedDataParallel, at its defaults.

    In its first backward pass it learns in which order gradients come, by which it then shares them
    out to buckets.
    """

    module: torch.nn.parallel.DistributedDataParallel
    rehearsals = 1

    def no_sync(self) -> AbstractContextManager[None]:
        return self.module.no_sync()

    def communication(self) -> Communication | None:
        return None


class TorchStaticGraph(TorchDistributedDataParallel):
    """The same with static_graph: its first backward fails unless it reduces.

    That does no harm where gradients accumulate, as the mean of a mean is the same mean. The order
    of gradients it learns in the second.
    """

    rehearsals = 2
    forwards = 0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.forwards += 1
        return super().forward(inputs)

    def no_sync(self) -> AbstractContextManager[None]:
        return super().no_sync() if self.forwards else nullcontext()


class OurLocalSGD(Plain):
    """dpbench.parallel.LocalSGD: gradients stay local, parameters are averaged now and then."""

    def __init__(self, module: torch.nn.Module, loss_weight: float, every: int) -> None:
        super().__init__(module, loss_weight)
        self.local = LocalSGD(module, every)

    def after_step(self) -> None:
        self.local.step()

    def settle(self) -> None:
        self.local.synchronize()

    def continue_from(self, steps: int) -> None:
        self.local.steps = steps  # so that averages keep their rhythm

    def communication(self) -> Communication | None:
        return Communication(self.local.averaged_bytes, self.local.averages)


class OurDataParallel(Plain):
    """dpbench.DataParallel: each backward sums over the replicas, accumulated or not."""

    module: parallel.DataParallel

    def without_sync(self) -> AbstractContextManager[None]:
        return self.module.without_reduction()

    def communication(self) -> Communication | None:
        return Communication(self.module.reduced_bytes, self.module.reductions)


class TorchDataParallel(Plain):
    """torch.nn.DataParallel; it has no way to leave the reduction out."""

    def communication(self) -> Communication | None:
        return None


Wrap = Callable[[torch.nn.Module, Settings, int], ParallelModel]


def wrap(module: torch.nn.Module, settings: Settings, rank: int) -> ParallelModel:
    """Wraps `module`, already on this rank's device, as the implementation of `settings` says."""
    return _WRAPPERS[settings.implementation](module, settings, rank)


def _plain(module: torch.nn.Module, settings: Settings, rank: int) -> ParallelModel:
    return Plain(module)


def _ddp(module: torch.nn.Module, settings: Settings, rank: int) -> ParallelModel:
    wrapped = parallel.DistributedDataParallel(
        module, _device_ids(settings, rank), bucket_cap_mb=settings.bucket_cap_mb
    )
    return OurDistributedDataParallel(wrapped, averaging_weight(settings, rank))


def _torch_ddp(module: torch.nn.Module, settings: Settings, rank: int) -> ParallelModel:
    wrapped = torch.nn.parallel.DistributedDataParallel(
        module, _device_ids(settings, rank), bucket_cap_mb=settings.bucket_cap_mb
    )
    return TorchDistributedDataParallel(wrapped, averaging_weight(settings, rank))


def _torch_ddp_static(module: torch.nn.Module, settings: Settings, rank: int) -> ParallelModel:
    wrapped = torch.nn.parallel.DistributedDataParallel(
        module,
        _device_ids(settings, rank),
        bucket_cap_mb=settings.bucket_cap_mb,
        gradient_as_bucket_view=True,
        static_graph=True,
    )
    return TorchStaticGraph(wrapped, averaging_weight(settings, rank))


def _local_sgd(module: torch.nn.Module, settings: Settings, rank: int) -> ParallelModel:
    return OurLocalSGD(module, averaging_weight(settings, rank), settings.sync_every)


def _dp(module: torch.nn.Module, settings: Settings, rank: int) -> ParallelModel:
    threads = settings.threads_per_replica
    return OurDataParallel(
        parallel.DataParallel(module, settings.devices, threads_per_replica=threads)
    )


def _torch_dp(module: torch.nn.Module, settings: Settings, rank: int) -> ParallelModel:
    return TorchDataParallel(
        torch.nn.DataParallel(module, [torch.device(d) for d in settings.devices])
    )


def _device_ids(settings: Settings, rank: int) -> list[torch.device] | None:
    device = torch.device(settings.devices[rank])
    return None if device.type == "cpu" else [device]


def averaging_weight(settings: Settings, rank: int) -> float:
    """n_r·W/N: makes the plain mean over ranks the mean over samples when shards differ."""
    sizes = settings.replica_batch_sizes
    return sizes[rank] * len(sizes) / sum(sizes)


_WRAPPERS: dict[str, Wrap] = {
    "dp": _dp,
    "ddp": _ddp,
    "torch-dp": _torch_dp,
    "torch-ddp": _torch_ddp,
    "torch-ddp-static": _torch_ddp_static,
    "local-sgd": _local_sgd,
    "single": _plain,
    "independent": _plain,
}

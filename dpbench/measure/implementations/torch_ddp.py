"""`torch-ddp` and `torch-ddp-static`: torch.nn.parallel.DistributedDataParallel."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from dpbench.data.batch import Samples
from dpbench.measure.implementations.comm_hooks import register_hook
from dpbench.measure.implementations.model import (
    Communication,
    Plain,
    Settings,
    averaging_weight,
    device_ids,
)


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

    def forward(self, inputs: Samples) -> Any:
        self.forwards += 1
        return super().forward(inputs)

    def no_sync(self) -> AbstractContextManager[None]:
        return super().no_sync() if self.forwards else nullcontext()


def torch_ddp(
    module: torch.nn.Module, settings: Settings, rank: int
) -> TorchDistributedDataParallel:
    """At torch's defaults."""
    return TorchDistributedDataParallel(
        _wrapped(module, settings, rank), averaging_weight(settings, rank)
    )


def torch_ddp_static(module: torch.nn.Module, settings: Settings, rank: int) -> TorchStaticGraph:
    """With the two options that make it fastest."""
    wrapped = _wrapped(module, settings, rank, gradient_as_bucket_view=True, static_graph=True)
    return TorchStaticGraph(wrapped, averaging_weight(settings, rank))


def _wrapped(
    module: torch.nn.Module, settings: Settings, rank: int, **options: Any
) -> torch.nn.parallel.DistributedDataParallel:
    wrapped = torch.nn.parallel.DistributedDataParallel(
        module, device_ids(settings, rank), bucket_cap_mb=settings.bucket_cap_mb, **options
    )
    register_hook(wrapped, settings)
    return wrapped


WRAPPERS = {"torch-ddp": torch_ddp, "torch-ddp-static": torch_ddp_static}

"""torch.nn.parallel.DistributedDataParallel, which `torch-ddp` and `torch-ddp-static` share."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch

from dpbench.measure.implementations.comm_hooks import register_hook
from dpbench.measure.implementations.model import ParallelModel, Settings, device_ids


class TorchDistributedDataParallel(ParallelModel):
    """torch.nn.parallel.DistributedDataParallel.

    In its first backward pass it learns the order of the gradients, and then assigns them to
    buckets in that order.
    """

    module: torch.nn.parallel.DistributedDataParallel
    rehearsals = 1

    def no_sync(self) -> AbstractContextManager[None]:
        return self.module.no_sync()


def wrapped(
    module: torch.nn.Module, settings: Settings, rank: int, **options: bool
) -> torch.nn.parallel.DistributedDataParallel:
    """Wrap `module` with `options`, and register the communication hook of `settings`."""
    replica = torch.nn.parallel.DistributedDataParallel(
        module,
        device_ids(settings, rank),
        bucket_cap_mb=settings.bucket_cap_mb,
        **options,  # type: ignore[arg-type]  # torch has parameters of other types beside flags
    )
    register_hook(replica, settings)
    return replica

"""`ddp` and `dp`: dpbench's DistributedDataParallel and DataParallel."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch

from dpbench import parallel
from dpbench.measure.implementations.comm_hooks import register_hook
from dpbench.measure.implementations.model import (
    Communication,
    Plain,
    Settings,
    averaging_weight,
    device_ids,
)


class OurDistributedDataParallel(Plain):
    """dpbench.DistributedDataParallel: backward returns with averaged gradients."""

    module: parallel.DistributedDataParallel

    def no_sync(self) -> AbstractContextManager[None]:
        return self.module.no_sync()

    def communication(self) -> Communication | None:
        return Communication(self.module.reduced_bytes, self.module.reductions)


class OurDdpWithHook(OurDistributedDataParallel):
    """The same with a communication hook, which does not tell what it sends."""

    def communication(self) -> Communication | None:
        return None


class OurDataParallel(Plain):
    """dpbench.DataParallel: each backward sums over the replicas, accumulated or not."""

    module: parallel.DataParallel

    def without_sync(self) -> AbstractContextManager[None]:
        return self.module.without_reduction()

    def communication(self) -> Communication | None:
        return Communication(self.module.reduced_bytes, self.module.reductions)


def ddp(module: torch.nn.Module, settings: Settings, rank: int) -> OurDistributedDataParallel:
    """One replica in each process."""
    wrapped = parallel.DistributedDataParallel(
        module, device_ids(settings, rank), bucket_cap_mb=settings.bucket_cap_mb
    )
    register_hook(wrapped, settings)
    kind = OurDistributedDataParallel if settings.comm_hook == "none" else OurDdpWithHook
    return kind(wrapped, averaging_weight(settings, rank))


def dp(module: torch.nn.Module, settings: Settings, rank: int) -> OurDataParallel:
    """All replicas in this process."""
    threads = settings.threads_per_replica
    return OurDataParallel(
        parallel.DataParallel(module, settings.devices, threads_per_replica=threads)
    )


WRAPPERS = {"ddp": ddp, "dp": dp}

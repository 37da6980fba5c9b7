"""`ddp`: dpbench's DistributedDataParallel, one replica in each process."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch

from dpbench import parallel
from dpbench.measure.implementations.comm_hooks import register_hook
from dpbench.measure.implementations.model import (
    Communication,
    Plain,
    Settings,
    Unreported,
    averaging_weight,
    device_ids,
)

TRAITS = {
    "order": 20,
    "description": "dpbench.DistributedDataParallel: flat buckets, overlapped all-reduce",
    "ours": True,
    "can_leave_out_sync": True,
    "settings": ("bucket_cap_mb", "comm_hook", "overlap"),
}


class OurDistributedDataParallel(Plain):
    """dpbench.DistributedDataParallel: backward returns with averaged gradients."""

    module: parallel.DistributedDataParallel

    def no_sync(self) -> AbstractContextManager[None]:
        return self.module.no_sync()

    def communication(self) -> Communication | None:
        return Communication(self.module.reduced_bytes, self.module.reductions)


class OurDdpWithHook(Unreported, OurDistributedDataParallel):
    """OurDistributedDataParallel with a communication hook, which does not report the bytes it
    sends."""


def wrap(module: torch.nn.Module, settings: Settings, rank: int) -> OurDistributedDataParallel:
    """Wrap `module`, and register the communication hook of `settings`."""
    wrapped = parallel.DistributedDataParallel(
        module,
        device_ids(settings, rank),
        bucket_cap_mb=settings.bucket_cap_mb,
        gradient_as_bucket_view=True,
        overlap=settings.overlap == "on",
    )
    register_hook(wrapped, settings)
    kind = OurDistributedDataParallel if settings.comm_hook == "none" else OurDdpWithHook
    return kind(wrapped, averaging_weight(settings, rank))

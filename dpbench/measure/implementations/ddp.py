"""`ddp`: dpbench's DistributedDataParallel, one replica in each process."""

from __future__ import annotations

import torch

from dpbench import parallel
from dpbench.measure.implementations.comm_hooks import register_hook
from dpbench.measure.implementations.model import ParallelModel, device_ids
from dpbench.specs import ParallelSpec

TRAITS = {
    "order": 20,
    "description": "dpbench.DistributedDataParallel: flat buckets, overlapped all-reduce",
    "ours": True,
    "can_run_unsynced": True,
    "settings": ("bucket_cap_mb", "find_unused", "comm_hook", "overlap"),
}


class OurDistributedDataParallel(ParallelModel):
    """dpbench.DistributedDataParallel: backward returns with averaged gradients."""

    wrapped: parallel.DistributedDataParallel

    def reduced_bytes(self) -> int:
        return self.wrapped.reduced_bytes


def wrap(module: torch.nn.Module, spec: ParallelSpec, rank: int) -> ParallelModel:
    """Wrap `module`, and register the communication hook of `spec`."""
    wrapped = parallel.DistributedDataParallel(
        module,
        device_ids(spec, rank),
        bucket_cap_mb=spec.bucket_cap_mb,
        find_unused_parameters=spec.find_unused == "on",
        gradient_as_bucket_view=True,
        overlap=spec.overlap == "on",
    )
    register_hook(wrapped, spec)
    if spec.comm_hook == "none":
        return OurDistributedDataParallel(wrapped)
    return ParallelModel(wrapped)  # a hook does not report the bytes that it sends

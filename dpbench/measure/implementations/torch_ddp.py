"""`torch-ddp`: torch.nn.parallel.DistributedDataParallel, with gradients in its buckets."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from dpbench.measure.implementations.comm_hooks import register_hook
from dpbench.measure.implementations.model import ParallelModel, device_ids
from dpbench.specs import ParallelSpec

TRAITS = {
    "order": 40,
    "description": "torch.nn.parallel.DistributedDataParallel",
    "can_run_unsynced": True,
    "settings": ("bucket_cap_mb", "find_unused", "comm_hook", "batched_copy"),
    "alternative": "torch-ddp-static",
}


def wrap(module: torch.nn.Module, spec: ParallelSpec, rank: int) -> ParallelModel:
    """Wrap `module` without static_graph."""
    return ParallelModel(torch_ddp(module, spec, rank, static_graph=False))


def torch_ddp(
    module: torch.nn.Module, spec: ParallelSpec, rank: int, *, static_graph: bool
) -> DistributedDataParallel:
    """Wrap `module`, with the communication hook of `spec`; gradients are views of buckets, as
    with `ddp`."""
    batched: dict[str, Any] = {}  # versions of torch before 2.13 do not have the argument
    if spec.batched_copy is not None:
        batched["batched_grad_copy"] = spec.batched_copy == "on"
    replica = DistributedDataParallel(
        module,
        device_ids(spec, rank),
        bucket_cap_mb=spec.bucket_cap_mb,
        find_unused_parameters=spec.find_unused == "on",
        gradient_as_bucket_view=True,
        static_graph=static_graph,
        **batched,
    )
    register_hook(replica, spec)
    return replica

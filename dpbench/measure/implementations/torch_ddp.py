"""`torch-ddp`: torch.nn.parallel.DistributedDataParallel, with gradients in its buckets."""

from __future__ import annotations

import torch

from dpbench.measure.implementations.model import Settings
from dpbench.measure.implementations.torch_wrapper import TorchDistributedDataParallel, wrapped

TRAITS = {
    "order": 40,
    "description": "torch.nn.parallel.DistributedDataParallel",
    "can_leave_out_sync": True,
    "settings": ("bucket_cap_mb", "comm_hook"),
    "sparse_backends": ("gloo",),
    "alternative": "torch-ddp-static",
}


def wrap(module: torch.nn.Module, settings: Settings, rank: int) -> TorchDistributedDataParallel:
    """Wrap `module`; gradients are views of buckets, as with `ddp`."""
    return TorchDistributedDataParallel(
        wrapped(module, settings, rank, gradient_as_bucket_view=True)
    )

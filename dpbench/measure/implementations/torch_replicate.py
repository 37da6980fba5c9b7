"""`torch-replicate`: torch's composable DistributedDataParallel, hooks on the module itself."""

from __future__ import annotations

import torch
from torch.distributed._composable.replicate import replicate

from dpbench.measure.implementations.comm_hooks import register_hook
from dpbench.measure.implementations.model import Composable, Settings, averaging_weight

TRAITS = {
    "order": 60,
    "description": "torch's composable DDP: hooks on the module itself, no wrapper",
    "can_leave_out_sync": True,
    "settings": ("bucket_cap_mb", "comm_hook"),
    "sparse_backends": (),
}


class Replicated(Composable):
    """A module with hooks that call a DistributedDataParallel of its parameters.

    The DistributedDataParallel is built in the first forward pass, and learns the order of
    gradients as torch-ddp does.
    """

    rehearsals = 1


def wrap(module: torch.nn.Module, settings: Settings, rank: int) -> Replicated:
    """Wrap `module` at torch's defaults."""
    device = torch.device(settings.devices[rank])
    replicated = replicate(module, device_id=device, bucket_cap_mb=settings.bucket_cap_mb)
    register_hook(replicated, settings)  # type: ignore[arg-type]
    return Replicated(replicated, averaging_weight(settings, rank))

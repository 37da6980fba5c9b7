"""`torch-dp`: torch.nn.DataParallel."""

from __future__ import annotations

import torch

from dpbench.measure.implementations.model import Settings, Unreported

TRAITS = {
    "order": 30,
    "description": "torch.nn.DataParallel (CUDA only)",
    "one_process": True,
    "backend": "threads",
    "needs_cuda": "torch.nn.DataParallel has no CPU replicas",
    "alternative": "dp",
}


class TorchDataParallel(Unreported):
    """torch.nn.DataParallel; its reduction cannot be left out."""


def wrap(module: torch.nn.Module, settings: Settings, rank: int) -> TorchDataParallel:
    """Wrap `module`, which is on the first of the devices."""
    devices = [torch.device(device) for device in settings.devices]
    return TorchDataParallel(torch.nn.DataParallel(module, devices))

"""`torch-dp`: torch.nn.DataParallel."""

from __future__ import annotations

import torch

from dpbench.measure.implementations.model import ParallelModel
from dpbench.specs import ParallelSpec

TRAITS = {
    "order": 30,
    "description": "torch.nn.DataParallel (CUDA only)",
    "exchange": "threads",
    "needs_cuda": "torch.nn.DataParallel has no CPU replicas",
    "alternative": "dp",
}


def wrap(module: torch.nn.Module, spec: ParallelSpec, rank: int) -> ParallelModel:
    """Wrap `module`, which is on the first of the devices; its reduction cannot be left out."""
    devices = [torch.device(device) for device in spec.devices]
    return ParallelModel(torch.nn.DataParallel(module, devices))

"""`torch-ddp-static`: torch's DistributedDataParallel with the two options that make it fastest."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from dpbench.data.batch import Samples
from dpbench.measure.implementations.model import ParallelModel
from dpbench.measure.implementations.torch_ddp import torch_ddp
from dpbench.specs import ParallelSpec

TRAITS = {
    "order": 50,
    "description": "torch-ddp with static_graph",
    "can_run_unsynced": True,
    "settings": ("bucket_cap_mb", "comm_hook", "batched_copy"),
}


class TorchStaticGraph(ParallelModel):
    """A wrapper with static_graph: its first backward must reduce, or it fails.

    Reducing early does no harm where gradients accumulate, as the mean of a mean is the same mean.
    """

    forwards = 0

    def forward(self, inputs: Samples) -> Any:
        self.forwards += 1
        return super().forward(inputs)

    def accumulate_only(self) -> AbstractContextManager[None]:
        return super().accumulate_only() if self.forwards else nullcontext()


def wrap(module: torch.nn.Module, spec: ParallelSpec, rank: int) -> TorchStaticGraph:
    """Wrap `module` with static_graph."""
    return TorchStaticGraph(torch_ddp(module, spec, rank, static_graph=True))

"""`local-sgd`: each rank trains alone, and parameters are averaged every few optimizer steps.

Only with an average after each step, and SGD without momentum, is it what DistributedDataParallel
does. Optimizer state (momentum, Adam's moments) stays local. Stich, "Local SGD Converges Fast and
Communicates Little" (2018), arXiv:1805.09767.
"""

from __future__ import annotations

import torch

from dpbench.measure.implementations.model import ParallelModel
from dpbench.parallel.agreement import average, make_equal
from dpbench.parallel.groups import member_group
from dpbench.parallel.torch_private import broadcast_coalesced
from dpbench.specs import ParallelSpec

TRAITS = {
    "order": 110,
    "description": "local SGD: parameters averaged every --sync-every steps",
    "ours": True,
    "can_run_unsynced": True,
    "averages_parameters": True,
    "settings": ("sync_every",),
}


class LocalSGD(ParallelModel):
    """A plain module whose gradients stay local."""

    def __init__(self, module: torch.nn.Module, every: int) -> None:
        """All ranks begin with the values of rank 0; a collective."""
        super().__init__(module)
        self._every = every
        self._group = member_group(None, "local-sgd")
        self._steps = self._averaged_at = self._averaged_bytes = 0
        make_equal("local-sgd", self._group, module.named_parameters(), module.named_buffers())

    def after_step(self, steps: int) -> None:
        self._steps = steps
        if steps % self._every == 0:
            self.sync_parameters()

    def sync_parameters(self) -> None:
        """Average now, unless nothing was trained since the last time; a collective.

        Integer buffers cannot be averaged and are taken from rank 0.
        """
        if self._averaged_at == self._steps:
            return
        self._averaged_at = self._steps
        averaged: list[torch.Tensor] = []
        others: list[torch.Tensor] = []
        for tensor in (*self.wrapped.parameters(), *self.wrapped.buffers()):
            has_mean = tensor.is_floating_point() or tensor.is_complex()
            (averaged if has_mean else others).append(tensor)
        self._averaged_bytes += average(averaged, self._group)
        self._averaged_bytes += broadcast_coalesced(others, self._group)

    def reduced_bytes(self) -> int:
        return self._averaged_bytes


def wrap(module: torch.nn.Module, spec: ParallelSpec, rank: int) -> LocalSGD:
    """Wrap `module`, to average parameters every `sync_every` steps."""
    return LocalSGD(module, spec.sync_every)

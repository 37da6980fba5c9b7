"""`local-sgd`: dpbench.parallel.LocalSGD."""

from __future__ import annotations

import torch

from dpbench.measure.implementations.model import Communication, ParallelModel
from dpbench.parallel.synchronization import LocalSGD
from dpbench.specs import RunSpec

TRAITS = {
    "order": 110,
    "description": "dpbench's LocalSGD: parameters averaged every --sync-every steps",
    "ours": True,
    "can_leave_out_sync": True,
    "averages_parameters": True,
    "settings": ("sync_every",),
}


class OurLocalSGD(ParallelModel):
    """dpbench.parallel.LocalSGD: gradients stay local, parameters are averaged now and then."""

    def __init__(self, module: torch.nn.Module, every: int) -> None:
        super().__init__(module)
        self.local = LocalSGD(module, every)

    def after_step(self, steps: int) -> None:
        self.local.steps = steps - 1  # a resumed training averages at the same steps
        self.local.step()

    def sync_parameters(self) -> None:
        self.local.synchronize()

    def communication(self) -> Communication | None:
        return Communication(self.local.averaged_bytes, self.local.averages)


def wrap(module: torch.nn.Module, settings: RunSpec, rank: int) -> OurLocalSGD:
    """Wrap `module`, to average parameters every `sync_every` steps."""
    return OurLocalSGD(module, settings.sync_every)

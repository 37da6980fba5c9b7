"""`local-sgd`: dpbench.parallel.LocalSGD."""

from __future__ import annotations

import torch

from dpbench.measure.implementations.model import Communication, Plain, Settings, averaging_weight
from dpbench.parallel.synchronization import LocalSGD

TRAITS = {
    "order": 110,
    "description": "dpbench's LocalSGD: parameters averaged every --sync-every steps",
    "ours": True,
    "can_leave_out_sync": True,
    "averages_parameters": True,
    "settings": ("sync_every",),
}


class OurLocalSGD(Plain):
    """dpbench.parallel.LocalSGD: gradients stay local, parameters are averaged now and then."""

    def __init__(self, module: torch.nn.Module, loss_weight: float, every: int) -> None:
        super().__init__(module, loss_weight)
        self.local = LocalSGD(module, every)

    def after_step(self) -> None:
        self.local.step()

    def settle(self) -> None:
        self.local.synchronize()

    def continue_from(self, steps: int) -> None:
        self.local.steps = steps  # averages stay at the same steps

    def communication(self) -> Communication | None:
        return Communication(self.local.averaged_bytes, self.local.averages)


def wrap(module: torch.nn.Module, settings: Settings, rank: int) -> OurLocalSGD:
    """Wrap `module`, to average parameters every `sync_every` steps."""
    return OurLocalSGD(module, averaging_weight(settings, rank), settings.sync_every)

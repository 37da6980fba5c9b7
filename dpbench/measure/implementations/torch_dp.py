"""`torch-dp`: torch.nn.DataParallel."""

from __future__ import annotations

import torch

from dpbench.measure.implementations.model import Communication, Plain, Settings


class TorchDataParallel(Plain):
    """torch.nn.DataParallel; it has no way to leave the reduction out."""

    def communication(self) -> Communication | None:
        return None


def torch_dp(module: torch.nn.Module, settings: Settings, rank: int) -> TorchDataParallel:
    """Wraps `module`, which is on the first of the devices."""
    devices = [torch.device(device) for device in settings.devices]
    return TorchDataParallel(torch.nn.DataParallel(module, devices))


WRAPPERS = {"torch-dp": torch_dp}

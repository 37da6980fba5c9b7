"""Where a process computes: its device, and its part of the cores."""

from __future__ import annotations

from typing import Protocol

import torch


class Placed(Protocol):
    """What a spec must say of its replicas: a TrialSpec or a TrainingSpec."""

    @property
    def devices(self) -> tuple[str, ...]: ...

    @property
    def threads_per_replica(self) -> int: ...

    @property
    def group_size(self) -> int: ...

    @property
    def process_count(self) -> int: ...


def settle_on_device(settings: Placed, rank: int) -> torch.device:
    """Selects this process's device and its share of the cores."""
    device = torch.device(settings.devices[rank])
    replicas_here = settings.group_size if settings.process_count == 1 else 1
    torch.set_num_threads(settings.threads_per_replica * replicas_here)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return device

"""`torch-replicate`: torch's composable DistributedDataParallel, hooks on the module itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch.distributed._composable.replicate import replicate

from dpbench.measure.implementations.comm_hooks import register_hook
from dpbench.measure.implementations.model import Communication, Plain, Settings, averaging_weight


class Replicated(Plain):
    """A module with hooks that call a DistributedDataParallel of its parameters.

    That is built in the first forward pass, and learns the order of gradients as torch-ddp does.
    """

    rehearsals = 1

    def no_sync(self) -> AbstractContextManager[None]:
        return self._unreduced()

    @contextmanager
    def _unreduced(self) -> Iterator[None]:
        self.module.set_requires_gradient_sync(False)  # type: ignore[operator]
        try:
            yield
        finally:
            self.module.set_requires_gradient_sync(True)  # type: ignore[operator]

    def communication(self) -> Communication | None:
        return None


def torch_replicate(module: torch.nn.Module, settings: Settings, rank: int) -> Replicated:
    """At torch's defaults."""
    device = torch.device(settings.devices[rank])
    replicated = replicate(module, device_id=device, bucket_cap_mb=settings.bucket_cap_mb)
    register_hook(replicated, settings)  # type: ignore[arg-type]
    return Replicated(replicated, averaging_weight(settings, rank))


WRAPPERS = {"torch-replicate": torch_replicate}

"""`accelerate`: Hugging Face Accelerate, whose wrapper is torch's DistributedDataParallel."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import torch

from dpbench.measure.implementations.model import ParallelModel, threads_kept
from dpbench.specs import ParallelSpec
from dpbench.temporary import temporary_variables

if TYPE_CHECKING:
    from accelerate import Accelerator

TRAITS = {
    "order": 80,
    "description": "torch's DDP as Hugging Face Accelerate sets it up",
    "can_run_unsynced": True,
    "requires": "accelerate",
}


class Accelerated(ParallelModel):
    """A module that an Accelerator has prepared; with a single replica it is the module itself."""

    def __init__(self, accelerator: Accelerator, module: torch.nn.Module) -> None:
        super().__init__(module)
        self._accelerator = accelerator

    def accumulate_only(self) -> AbstractContextManager[None]:
        unreduced: AbstractContextManager[None] = self._accelerator.no_sync(self.wrapped)
        return unreduced

    def backward(self, loss: torch.Tensor) -> None:
        self._accelerator.backward(loss)


def wrap(module: torch.nn.Module, settings: ParallelSpec, rank: int) -> Accelerated:
    """Wrap `module` at Accelerate's defaults, in the existing process group."""
    from accelerate import Accelerator

    device = torch.device(settings.devices[rank])
    # Accelerate takes the GPU with the number of the local rank, whatever GPUs were asked for.
    of_device = {} if device.type == "cpu" else {"LOCAL_RANK": str(device.index)}
    with threads_kept(), temporary_variables(of_device):
        accelerator = Accelerator(cpu=device.type == "cpu", device_placement=False)
        prepared = accelerator.prepare_model(module)
    return Accelerated(accelerator, prepared)

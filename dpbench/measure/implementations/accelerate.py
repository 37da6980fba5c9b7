"""`accelerate`: Hugging Face Accelerate, whose wrapper is torch's DistributedDataParallel."""

from __future__ import annotations

import torch

from dpbench.measure.implementations.model import LibraryModel, threads_kept
from dpbench.specs import ParallelSpec
from dpbench.temporary import temporary_variables

TRAITS = {
    "order": 80,
    "description": "torch's DDP as Hugging Face Accelerate sets it up",
    "can_run_unsynced": True,
    "requires": "accelerate",
}


def wrap(module: torch.nn.Module, spec: ParallelSpec, rank: int) -> LibraryModel:
    """Wrap `module` at Accelerate's defaults, in the existing process group; a single replica stays
    the module itself."""
    from accelerate import Accelerator

    device = torch.device(spec.devices[rank])
    # Accelerate takes the GPU with the number of the local rank, whatever GPUs were asked for.
    of_device = {} if device.type == "cpu" else {"LOCAL_RANK": str(device.index)}
    with threads_kept(), temporary_variables(of_device):
        accelerator = Accelerator(cpu=device.type == "cpu", device_placement=False)
        prepared = accelerator.prepare_model(module)
    return LibraryModel(prepared, no_sync=accelerator.no_sync, run_backward=accelerator.backward)

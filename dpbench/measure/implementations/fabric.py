"""`fabric`: Lightning Fabric, whose wrapper has torch's DistributedDataParallel inside."""

from __future__ import annotations

import torch

from dpbench.measure.implementations.model import LibraryModel, threads_kept
from dpbench.specs import ParallelSpec

TRAITS = {
    "order": 90,
    "description": "torch's DDP as Lightning Fabric sets it up",
    "can_run_unsynced": True,
    "requires": "lightning_fabric",
}


def wrap(module: torch.nn.Module, spec: ParallelSpec, rank: int) -> LibraryModel:
    """Wrap `module` with Fabric's DDP strategy at its defaults, in the existing process group."""
    from lightning_fabric import Fabric
    from lightning_fabric.plugins.environments.torchelastic import TorchElasticEnvironment
    from lightning_fabric.strategies.ddp import DDPStrategy

    places = spec.node_devices
    node, device = places[rank]
    here = [torch.device(other).index for number, other in places if number == node]
    with threads_kept():
        fabric = Fabric(
            accelerator="cpu" if device == "cpu" else "cuda",
            devices=len(here) if device == "cpu" else here,
            num_nodes=len({number for number, _ in places}),
            # Given explicitly: Fabric would assume SLURM wherever srun is installed.
            strategy=DDPStrategy(cluster_environment=TorchElasticEnvironment()),
        )
        fabric.launch()
        wrapped = fabric.setup_module(module, move_to_device=False)
    return LibraryModel(wrapped, no_sync=fabric.no_backward_sync, run_backward=fabric.backward)

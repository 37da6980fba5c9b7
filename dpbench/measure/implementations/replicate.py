"""`replicate`: torch's fully_shard with whole parameters on every rank, DDP's successor on FSDP2.

A device mesh of one shard makes `fully_shard` do what torch's own `replicate` does, which has no
public name yet: nothing is gathered, and the gradients of a block are averaged by one all-reduce.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from dpbench.measure.implementations.fsdp2 import FullySharded, sharded
from dpbench.specs import ParallelSpec

TRAITS = {
    "order": 60,
    "description": "torch's replicate: whole parameters on each rank, all-reduce as of FSDP2",
    "shards": "parameters",
}


def wrap(module: nn.Module, spec: ParallelSpec, rank: int) -> FullySharded:
    """Replicate `module` in place over all ranks: each of its blocks, then the rest."""
    world, own = dist.group.WORLD, dist.new_group([rank], use_local_synchronization=True)
    assert world is not None
    mesh = DeviceMesh.from_group(
        [world, own],
        torch.device(spec.devices[rank]).type,
        mesh=[[number] for number in range(spec.process_count)],
        mesh_dim_names=("replicate", "shard"),
    )
    return sharded(module, mesh)

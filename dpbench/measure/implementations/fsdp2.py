"""`fsdp2`: torch's fully_shard, where each rank holds a part of every parameter.

Parameters, gradients and the optimizer's state are shards (DTensors). A block's parameters are
gathered before its forward and its backward pass, and its gradients are averaged into shards. Where
torch can, both have process groups of their own, so that neither waits for the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from dpbench.measure.implementations.model import ParallelModel
from dpbench.specs import ParallelSpec

TRAITS = {
    "order": 70,
    "description": "torch's fully_shard: shards parameters, gradients, optimizer state",
    "shards": "parameters",
}

LISTS = (nn.Sequential, nn.ModuleList)


class FullySharded(ParallelModel):
    """A module whose parameters are sharded, or replicated as if they were.

    Gathering cannot be left out, and inside `accumulate_only` whole gradients accumulate on each
    rank, as large as those of DDP, where no optimizer sees them.
    """

    @contextmanager
    def accumulate_only(self) -> Iterator[None]:
        self.wrapped.set_requires_gradient_sync(False)  # type: ignore[operator]
        try:
            yield
        finally:
            self.wrapped.set_requires_gradient_sync(True)  # type: ignore[operator]


def wrap(module: nn.Module, spec: ParallelSpec, rank: int) -> FullySharded:
    """Shard `module` in place over all ranks: each of its blocks, then the rest."""
    assert dist.group.WORLD is not None
    mesh = DeviceMesh.from_group(dist.group.WORLD, torch.device(spec.devices[rank]).type)
    model = sharded(module, mesh)
    if hasattr(module, "set_separate_reduce_scatter_group"):  # from torch 2.13 on
        module.set_separate_reduce_scatter_group()  # type: ignore[operator]
    return model


def sharded(module: nn.Module, mesh: DeviceMesh) -> FullySharded:
    """Apply `fully_shard` to each block of the module, then to the rest."""
    for part in (*sharded_blocks(module), module):
        fully_shard(part, mesh=mesh)
    return FullySharded(module)


def sharded_blocks(module: nn.Module) -> Iterator[nn.Module]:
    """The modules that are sharded on their own: the members of each list of layers.

    A member stays part of the whole if it has no parameters, or shares one with another module:
    both must find the same gathered tensor.
    """

    def uses(module: nn.Module) -> Counter[int]:
        """The number of names of each parameter, by its identity."""
        return Counter(id(p) for _, p in module.named_parameters(remove_duplicate=False))

    def members(module: nn.Module) -> Iterator[nn.Module]:
        """The outermost members of every list; neither lists nor lists inside a member."""
        for child in module.children():
            if isinstance(module, LISTS) and not isinstance(child, LISTS):
                yield child
            else:
                yield from members(child)

    everywhere = uses(module)
    for member in members(module):
        here = uses(member)
        if here and all(everywhere[parameter] == count for parameter, count in here.items()):
            yield member

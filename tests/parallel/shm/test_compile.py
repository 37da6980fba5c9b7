"""torch.compile goes around the backend: what it compiles gives the same with and without it."""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tests.parallel.worlds import World

world = World(backend="shm")
warnings.simplefilter("ignore")  # the compiler warns of much that is torch's own


def _compiled(function: Any) -> Any:
    """What is settled before C++ is written, which takes long."""
    return torch.compile(function, backend="aot_eager")


def _communicate(x: Tensor) -> Tensor:
    y = x * 2
    dist.all_reduce(y)
    z = y + 1
    work = dist.all_reduce(z, async_op=True)
    assert work is not None
    work.wait()
    gathered = [torch.empty_like(z) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, z + dist.get_rank())
    dist.broadcast(z, 0)
    dist.barrier()
    return gathered[0] + gathered[1] * z


def _functional(x: Tensor) -> Tensor:
    from torch.distributed import _functional_collectives as collectives

    group = dist.group.WORLD
    y = collectives.all_reduce(x, "sum", group)
    z = collectives.all_gather_tensor(y + dist.get_rank(), 0, group)
    z = collectives.reduce_scatter_tensor(z, "sum", 0, group)
    return collectives.broadcast(z, 1, group) * 2


@world.body
def compiled_functions_communicate(rank: int) -> None:
    for function in (_communicate, _functional):
        inputs = torch.arange(4.0) + rank
        result = _compiled(function)(inputs)
        torch.testing.assert_close(result, function(inputs))


test_on_ranks = world.test()

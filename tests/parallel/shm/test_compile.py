"""torch.compile goes around the backend: what it compiles gives the same with and without it."""

from __future__ import annotations

import warnings

import torch
import torch.distributed as dist
from torch import Tensor

from tests.parallel.worlds import World

world = World(backend="shm")
warnings.simplefilter("ignore")  # the compiler warns of much that is torch's own


def _functional(x: Tensor) -> Tensor:
    from torch.distributed import _functional_collectives as collectives

    group = dist.group.WORLD
    y = collectives.all_reduce(x, "sum", group)
    z = collectives.all_gather_tensor(y + dist.get_rank(), 0, group)
    z = collectives.reduce_scatter_tensor(z, "sum", 0, group)
    return collectives.broadcast(z, 1, group) * 2


@world.body
def compiled_functions_communicate(rank: int) -> None:
    inputs = torch.arange(4.0) + rank
    # The backend settles everything before C++ is written, which takes long.
    result = torch.compile(_functional, backend="aot_eager")(inputs)
    torch.testing.assert_close(result, _functional(inputs))


test_on_ranks = world.test()

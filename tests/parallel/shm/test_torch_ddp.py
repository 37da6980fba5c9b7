"""torch's own DistributedDataParallel on a shm group: the same gradients as on gloo."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from tests.parallel.shm.cases import same_bits
from tests.parallel.worlds import World

world = World(backend="shm")

STEPS = 4


class _Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(20, 300)
        self.norm = nn.BatchNorm1d(300)
        self.last = nn.Linear(300, 5)
        self.sometimes = nn.Linear(5, 5)

    def forward(self, inputs: Tensor, *, all_of_it: bool = True) -> Tensor:
        outputs = self.last(self.norm(self.first(inputs)).relu())
        return self.sometimes(outputs) if all_of_it else outputs


def _train(
    rank: int,
    group: dist.ProcessGroup,
    *,
    uneven: bool = False,
    skip: bool = False,
    bucket_cap_mb: float = 0.01,
    **options: Any,
) -> list[Tensor]:
    """All gradients of all steps."""
    torch.manual_seed(0)
    model = DistributedDataParallel(
        _Model(), process_group=group, bucket_cap_mb=bucket_cap_mb, **options
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(rank)
    gradients = []
    with Join([model], enable=uneven):
        for step in range(STEPS + (rank if uneven else 0)):
            optimizer.zero_grad()
            outputs = model(torch.randn(8, 20), all_of_it=not (skip and step % 2))
            outputs.square().mean().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            gradients += [p.grad.clone() for p in model.parameters() if p.grad is not None]
    return gradients


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "views": {"gradient_as_bucket_view": True},
    "static": {"static_graph": True},
    "unused": {"find_unused_parameters": True, "skip": True},
    "uneven": {"uneven": True},
}


@world.body
def torch_ddp_gets_gloos_gradients_bit_for_bit(rank: int) -> None:
    gloo = dist.new_group(backend="gloo")
    for name, options in OPTIONS.items():
        ours = _train(rank, dist.group.WORLD, **options)
        theirs = _train(rank, gloo, **options)
        assert ours, name
        for one, other in zip(ours, theirs, strict=True):
            assert same_bits(one, other), name


test_on_ranks = world.test()

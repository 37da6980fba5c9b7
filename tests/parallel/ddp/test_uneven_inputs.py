"""join: ranks with fewer batches take part until all are done, and end with the same model."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn

from dpbench.parallel import DistributedDataParallel as Ddp
from tests.parallel.ddp.one_process import TINY, digest, everywhere, perceptron, step
from tests.parallel.worlds import World

world = World(backend="gloo", sizes=(2, 3))


@world.body
def a_rank_may_have_no_batch_at_all(rank: int) -> None:
    """It makes its buckets when the others do."""
    for options in ({}, {"find_unused_parameters": True}, {"static_graph": True}):
        ddp = Ddp(perceptron(), bucket_cap_mb=TINY, **options)
        with ddp.join():
            for seed in range(3 if rank == 0 else 0):
                ddp.zero_grad()
                step(ddp, seed, rank)
        assert len(set(everywhere(digest(ddp)))) == 1


@world.body
def both_divisors_average_the_ranks_with_data(rank: int) -> None:
    """Rank r has r + 1 batches, all its gradients are r + 1, and the last rank's model remains."""
    size = dist.get_world_size()

    def average(number: int) -> float:
        with_data = [float(peer + 1) for peer in range(number, size)]
        return sum(with_data) / (len(with_data) if by_active else size)

    for by_active in (True, False):
        ddp = Ddp(nn.Linear(1, 1, bias=False))
        weight = ddp.module.weight
        last = weight.item() - 0.1 * sum(map(average, range(size)))
        with ddp.join(divide_by_initial_world_size=not by_active):
            for number in range(rank + 1):
                ddp.zero_grad()
                ddp(torch.tensor([[rank + 1.0]])).sum().backward()
                assert weight.grad.item() == pytest.approx(average(number))
                with torch.no_grad():
                    weight -= 0.1 * weight.grad
        assert everywhere(weight.item()) == pytest.approx([last] * size)


test_on_ranks = world.test()

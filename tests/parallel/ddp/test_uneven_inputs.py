"""join: ranks with fewer batches take part until all are done, and end with the same model."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dpbench.parallel import DistributedDataParallel as Ddp
from tests.parallel.ddp.one_process import (
    assert_same,
    digest,
    everywhere,
    perceptron,
    step,
)
from tests.parallel.worlds import World

world = World(backend="gloo", sizes=(2, 3))

RATE = 0.1
COUNTS = {2: (2, 5), 3: (4, 1, 3)}
"""Batches of each rank, by group size."""

Step = Callable[[nn.Module, int, int], None]


def counts() -> tuple[int, ...]:
    return COUNTS[dist.get_world_size()]


def one_process(make: Callable[[], nn.Module], run: Step, *, by_active: bool) -> nn.Module:
    """The training of all ranks, one after the other on the same weights."""
    module = make()
    for seed in range(max(counts())):
        active = [rank for rank, count in enumerate(counts()) if seed < count]
        divisor = len(active) if by_active else len(counts())
        total = [torch.zeros_like(p) for p in module.parameters()]
        for rank in active:
            replica = copy.deepcopy(module)
            run(replica, seed, rank)
            for sum_, p in zip(total, replica.parameters(), strict=True):
                sum_ += 0 if p.grad is None else p.grad
        with torch.no_grad():
            for p, sum_ in zip(module.parameters(), total, strict=True):
                p -= RATE * sum_ / divisor
    return module


def train(ddp: Ddp, run: Step, rank: int, **options: bool) -> None:
    with ddp.join(**options):
        for seed in range(counts()[rank]):
            ddp.zero_grad()
            run(ddp, seed, rank)
            with torch.no_grad():
                for p in ddp.parameters():
                    p -= 0 if p.grad is None else RATE * p.grad


def weights(module: nn.Module) -> dict[str, Tensor | None]:
    return {name: p.detach() for name, p in module.named_parameters()}


@world.body
def a_rank_may_have_no_batch_at_all(rank: int) -> None:
    """It makes its buckets when the others do, which on shm is a collective."""
    for options in ({}, {"find_unused_parameters": True}, {"static_graph": True}):
        ddp = Ddp(perceptron(), **options)
        with ddp.join():
            for seed in range(3 if rank == 0 else 0):
                ddp.zero_grad()
                step(ddp, seed, rank)
        assert len(set(everywhere(digest(ddp)))) == 1


@world.body
def both_divisors_train_as_one_process(rank: int) -> None:
    for by_active in (True, False):
        ddp = Ddp(perceptron(), bucket_cap_mb=1e-4)
        train(ddp, step, rank, divide_by_initial_world_size=not by_active)
        alone = one_process(perceptron, step, by_active=by_active)
        assert_same(weights(ddp.module), weights(alone))
        assert len(set(everywhere(digest(ddp)))) == 1


test_on_ranks = world.test()

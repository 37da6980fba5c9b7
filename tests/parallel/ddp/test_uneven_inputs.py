"""join: ranks with fewer batches take part until all are done, and end with the same model."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from dpbench.parallel import DistributedDataParallel as Ddp
from tests.parallel.ddp.one_process import (
    TINY,
    Branches,
    assert_same,
    batches,
    everywhere,
    gradients,
    mean_gradients,
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


def digest(module: nn.Module) -> str:
    data = [t.detach().reshape(-1).view(torch.uint8) for t in module.state_dict().values()]
    return hashlib.sha256(torch.cat(data).numpy().tobytes()).hexdigest()


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


@world.body
def after_the_context_all_is_as_before(rank: int) -> None:
    ddp = Ddp(perceptron())
    for _ in range(2):
        train(ddp, step, rank, divide_by_initial_world_size=False)
    if rank == 0:  # no collective, as ever
        ddp.eval()
        ddp(batches(0)[0])
        ddp.train()
    ddp.zero_grad()
    kept = copy.deepcopy(ddp.module)
    expected = mean_gradients(lambda: copy.deepcopy(kept), lambda m, r: step(m, 0, r))
    step(ddp, 0, rank)
    assert_same(gradients(ddp), expected)


@world.body
def unused_parameters_and_static_graphs_work_in_it(rank: int) -> None:
    def run(module: nn.Module, seed: int, rank: int) -> None:
        use = "ab" if rank else "a"
        module(batches(seed, 3)[rank], use).pow(2).mean().backward()

    for options in ({"find_unused_parameters": True}, {"static_graph": True}):
        ddp = Ddp(Branches(), bucket_cap_mb=TINY, **options)
        train(ddp, run, rank)
        assert_same(weights(ddp.module), weights(one_process(Branches, run, by_active=False)))
        assert ddp.module.c.weight.grad is None or not ddp.module.c.weight.grad.any()


@world.body
def steps_without_sync_are_shadowed(rank: int) -> None:
    def run(module: nn.Module, seed: int, rank: int) -> None:
        with module.no_sync() if isinstance(module, Ddp) else nullcontext():
            step(module, seed, rank)
        step(module, seed + 10, rank)

    ddp = Ddp(perceptron())
    train(ddp, run, rank)
    assert_same(weights(ddp.module), weights(one_process(perceptron, run, by_active=False)))


@world.body
def all_raise_at_the_end_of_the_first(rank: int) -> None:
    ddp = Ddp(perceptron())
    done = 0
    early = ddp.join(throw_on_early_termination=True)
    with pytest.raises(RuntimeError, match="exhausted"), early:  # noqa: PT012
        for seed in range(counts()[rank]):
            step(ddp, seed, rank)
            done += 1
    assert done == min(counts())


test_on_ranks = world.test()

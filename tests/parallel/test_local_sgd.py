"""Local SGD is plain training on each rank, and a mean of parameters now and then."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from dpbench.parallel.agreement import check_sync
from dpbench.parallel.synchronization import LocalSGD
from tests.parallel.ddp.one_process import batches, perceptron
from tests.parallel.worlds import World

world = World(backend="gloo")

RATE = 0.1


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 2)).double()


def train(module: nn.Module, optimizer: torch.optim.Optimizer, rank: int, step: int) -> None:
    optimizer.zero_grad()
    module(batches(step)[rank]).square().mean().backward()
    optimizer.step()


def sgd(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), lr=RATE)


def assert_close(module: nn.Module, expected: nn.Module) -> None:
    theirs = expected.state_dict()
    for name, tensor in module.state_dict().items():
        torch.testing.assert_close(tensor, theirs[name], rtol=1e-12, atol=1e-12)


@world.body
def every_step_with_sgd_is_what_ddp_does(rank: int) -> None:
    """Without batch norm's buffers, which DDP does not average."""
    plain = perceptron()
    reference = nn.parallel.DistributedDataParallel(copy.deepcopy(plain))
    local = LocalSGD(plain, every=1)
    optimizers = sgd(plain), sgd(reference)
    for step in range(5):
        train(plain, optimizers[0], rank, step)
        local.step()
        train(reference, optimizers[1], rank, step)
        assert_close(plain, reference.module)


@world.body
def every_third_step_is_the_mean_of_what_each_rank_did_alone(rank: int) -> None:
    ours = model()
    local, optimizer = LocalSGD(ours, every=3), sgd(ours)
    replicas = [model(), model()]
    others = [sgd(replica) for replica in replicas]
    for step in range(7):
        train(ours, optimizer, rank, step)
        local.step()
        for number, (replica, other) in enumerate(zip(replicas, others, strict=True)):
            train(replica, other, number, step)
        if (step + 1) % 3 == 0:
            average_in_one_process(replicas)
            check_sync(ours)
        assert_close(ours, replicas[rank])
    with pytest.raises(RuntimeError, match="tensors differ from rank 0"):
        check_sync(ours)
    assert (local.steps, local.averages) == (7, 2)


def average_in_one_process(replicas: list[nn.Module]) -> None:
    states = [replica.state_dict() for replica in replicas]
    for name, first in states[0].items():
        mean = first if not first.is_floating_point() else sum(s[name] for s in states) / 2
        for state in states:
            state[name].copy_(mean)


@world.body
def ranks_begin_with_the_weights_of_rank_0(rank: int) -> None:
    module = model()
    with torch.no_grad():
        module[0].weight += rank
    LocalSGD(module, every=2)
    check_sync(module)
    assert_close(module, model())


@pytest.mark.parametrize("every", [0, -1, 2.0, True, None])
def test_an_interval_that_is_no_number_of_steps_is_refused(every: object) -> None:
    with pytest.raises(ValueError, match="expected a whole number above 0"):
        LocalSGD(model(), every)  # type: ignore[arg-type]


test_on_ranks = world.test()

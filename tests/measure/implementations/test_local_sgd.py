"""Local SGD is plain training on each rank, and a mean of parameters now and then."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from dpbench.measure.implementations import wrap
from dpbench.parallel import check_sync
from tests.builders import configuration
from tests.parallel.ddp.one_process import batches, perceptron
from tests.parallel.ranks import World

world = World(backend="gloo")


def with_buffers() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 2)).double()


def train(module: nn.Module, rank: int, step: int) -> None:
    module.zero_grad()
    module(batches(step)[rank]).square().mean().backward()
    torch.optim.SGD(module.parameters(), lr=0.1).step()


def assert_close(module: nn.Module, expected: nn.Module) -> None:
    theirs = expected.state_dict()
    for name, tensor in module.state_dict().items():
        torch.testing.assert_close(tensor, theirs[name], rtol=1e-12, atol=1e-12)


@world.body
def every_step_with_sgd_is_what_ddp_does(rank: int) -> None:
    """Without batch norm's buffers, which DDP does not average."""
    plain = perceptron()
    reference = nn.parallel.DistributedDataParallel(copy.deepcopy(plain))
    local = wrap(plain, configuration(implementation="local-sgd", sync_every=1), rank)
    for step in range(5):
        train(plain, rank, step)
        local.after_step(step + 1)
        train(reference, rank, step)
        assert_close(plain, reference.module)


@world.body
def every_third_step_is_the_mean_of_what_each_rank_did_alone(rank: int) -> None:
    ours = with_buffers()
    with torch.no_grad():
        ours[0].weight += rank  # ranks begin with the weights of rank 0
    local = wrap(ours, configuration(implementation="local-sgd", sync_every=3), rank)
    replicas = [with_buffers(), with_buffers()]
    for step in range(7):
        train(ours, rank, step)
        local.after_step(step + 1)
        for number, replica in enumerate(replicas):
            train(replica, number, step)
        if (step + 1) % 3 == 0:
            states = [replica.state_dict() for replica in replicas]
            for name, first in states[0].items():
                mean = first if not first.is_floating_point() else sum(s[name] for s in states) / 2
                for state in states:
                    state[name].copy_(mean)
            check_sync(ours)
        assert_close(ours, replicas[rank])
    with pytest.raises(RuntimeError, match="tensors differ from rank 0"):
        check_sync(ours)
    for _ in range(2):  # the second has nothing to do
        local.sync_parameters()
    check_sync(ours)
    assert local.reduced_bytes() == 3 * sum(tensor.nbytes for tensor in ours.state_dict().values())


test_on_ranks = world.test()

"""Gradients that arrive in a replica's leaves get to the right tensor, or nowhere else."""

from __future__ import annotations

import torch
from torch import nn

from dpbench.parallel.dp.replicate import Replicator
from tests.parallel.dp.modules import batch

X = batch(7)


DEVICES = [torch.device("cpu"), torch.device("meta")]
"""The second stands for a device with memory of its own; copies to it are made all the same."""


def module() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))


SIZE = sum(parameter.nbytes for parameter in module().parameters())


def test_an_unchanged_module_costs_no_copy() -> None:
    net, replicator = module(), Replicator(DEVICES)
    for _ in range(3):
        replicas = replicator.replicate(net, 2)
        assert replicator.replicate_bytes == SIZE
    assert [p.device for p in replicas[1].module.parameters()] == [DEVICES[1]] * 4


def test_without_cache_each_forward_copies() -> None:
    net, replicator = module(), Replicator(DEVICES, cache=False)
    for _ in range(3):
        replicator.replicate(net, 2)
    assert replicator.replicate_bytes == 3 * SIZE

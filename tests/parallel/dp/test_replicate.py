"""Replicas keep copies of the parameters while the module is unchanged."""

from __future__ import annotations

import torch
from torch import nn

from dpbench.parallel.dp.replicate import Replica, Replicator

DEVICES = [torch.device("cpu"), torch.device("meta")]
"""The second stands for a device with memory of its own; copies to it are made all the same."""


def module() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))


def second(net: nn.Module, replicator: Replicator) -> Replica:
    return replicator.replicate(net, 2)[1]


def test_an_unchanged_module_costs_no_copy() -> None:
    net, replicator = module(), Replicator(DEVICES)
    before, after = second(net, replicator), second(net, replicator)
    assert [id(p) for p in after.parameters] == [id(p) for p in before.parameters]
    assert [p.device for p in after.module.parameters()] == [DEVICES[1]] * 4
    with torch.no_grad():
        net[0].weight.mul_(2)
    changed = second(net, replicator)
    assert not {id(p) for p in changed.parameters} & {id(p) for p in before.parameters}


def test_without_cache_each_forward_copies() -> None:
    net, replicator = module(), Replicator(DEVICES, cache=False)
    before, after = second(net, replicator), second(net, replicator)
    assert not {id(p) for p in after.parameters} & {id(p) for p in before.parameters}

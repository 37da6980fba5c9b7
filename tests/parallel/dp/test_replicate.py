"""Replicas keep copies of the parameters while the module is unchanged."""

from __future__ import annotations

import torch
from torch import nn

from dpbench.parallel.dp.replicate import Replicator

DEVICES = [torch.device("cpu"), torch.device("meta")]
"""The second stands for a device with memory of its own; copies to it are made all the same."""


def module() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))


def test_an_unchanged_module_costs_no_copy() -> None:
    net, replicator = module(), Replicator(DEVICES)
    [_, first], [_, second] = (replicator.replicate(net, 2) for _ in range(2))
    assert [id(p) for p in second.parameters] == [id(p) for p in first.parameters]
    assert [p.device for p in second.module.parameters()] == [DEVICES[1]] * 4


def test_without_cache_each_forward_copies() -> None:
    net, replicator = module(), Replicator(DEVICES, cache=False)
    [_, first], [_, second] = (replicator.replicate(net, 2) for _ in range(2))
    assert not {id(p) for p in second.parameters} & {id(p) for p in first.parameters}

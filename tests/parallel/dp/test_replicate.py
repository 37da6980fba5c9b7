"""Replicas keep copies of the parameters while the module is unchanged."""

from __future__ import annotations

from collections.abc import Callable

import pytest
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


@pytest.mark.parametrize(
    "change",
    [
        lambda net: torch.optim.SGD(net.parameters(), lr=0.1).step(),
        lambda net: net[0].weight.detach().mul_(2),
        lambda net: net.load_state_dict(net.state_dict()),
        lambda net: net.double(),
        lambda net: net.half().float(),
        lambda net: net.append(nn.Linear(2, 2)),
        lambda net: net[0].weight.requires_grad_(False),
    ],
)
def test_each_change_of_the_module_costs_a_copy(change: Callable[[nn.Module], object]) -> None:
    net, replicator = module(), Replicator(DEVICES)
    net(torch.ones(1, 3)).sum().backward()
    before = second(net, replicator)
    change(net)
    after = second(net, replicator)
    assert not {id(p) for p in after.parameters} & {id(p) for p in before.parameters}
    assert [(p.dtype, p.requires_grad) for p in after.parameters] == [
        (p.dtype, p.requires_grad) for p in net.parameters()
    ]


def test_another_tensor_at_the_same_address_costs_a_copy() -> None:
    """As when a module went to another dtype and back, and got the memory that it had before."""
    net, replicator, memory = nn.Linear(3, 1), Replicator(DEVICES), bytearray(12)
    net.weight.data = torch.frombuffer(memory, dtype=torch.float32).view(1, 3)
    before = second(net, replicator)
    net.weight.data = torch.frombuffer(memory, dtype=torch.float32).view(1, 3)
    assert second(net, replicator).parameters[0] is not before.parameters[0]


def test_without_cache_each_forward_copies() -> None:
    net, replicator = module(), Replicator(DEVICES, cache=False)
    before, after = second(net, replicator), second(net, replicator)
    assert not {id(p) for p in after.parameters} & {id(p) for p in before.parameters}

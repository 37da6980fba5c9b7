"""Replicas keep copies of the parameters, which follow the module."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from dpbench.parallel.dp.replicate import Replica, Replicator

DEVICES = [torch.device("cpu"), torch.device("cpu:0")]
"""torch says that they are unequal: the second stands for a device with memory of its own."""


def module() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))


def second(net: nn.Module, replicator: Replicator) -> Replica:
    return replicator.replicate(net, 2)[1]


def versions(replica: Replica) -> list[int]:
    return [parameter._version for parameter in replica.parameters]  # noqa: SLF001


def assert_follows(replica: Replica, net: nn.Module) -> None:
    for copy, original in zip(replica.parameters, net.parameters(), strict=True):
        assert copy.data_ptr() != original.data_ptr()
        assert (copy.dtype, copy.requires_grad) == (original.dtype, original.requires_grad)
        assert torch.equal(copy, original)


def test_an_unchanged_module_costs_no_copy() -> None:
    net, replicator = module(), Replicator(DEVICES)
    before = versions(second(net, replicator))
    after = second(net, replicator)
    assert versions(after) == before
    assert_follows(after, net)


@pytest.mark.parametrize(
    ("change", "keeps_memory"),
    [
        (lambda net: torch.optim.SGD(net.parameters(), lr=0.1).step(), True),
        (lambda net: net[0].weight.detach().mul_(2), True),
        (lambda net: net.load_state_dict({k: 2 * v for k, v in net.state_dict().items()}), True),
        (lambda net: net.double(), False),
        (lambda net: net.half().float(), False),
        (lambda net: net.append(nn.Linear(2, 2)), False),
        (lambda net: net[0].weight.requires_grad_(False), False),
    ],
)
def test_copies_follow_every_change(
    change: Callable[[nn.Module], object], keeps_memory: bool
) -> None:
    net, replicator = module(), Replicator(DEVICES)
    net(torch.ones(1, 3)).sum().backward()
    before = [p.data_ptr() for p in second(net, replicator).parameters]
    change(net)
    after = second(net, replicator)
    assert_follows(after, net)
    if keeps_memory:
        assert [p.data_ptr() for p in after.parameters] == before


def test_another_tensor_at_the_same_address_costs_a_copy() -> None:
    """As when a module went to another dtype and back, and got the memory that it had before."""
    net, replicator, memory = nn.Linear(3, 1), Replicator(DEVICES), bytearray(12)
    net.weight.data = torch.frombuffer(memory, dtype=torch.float32).view(1, 3)
    before = versions(second(net, replicator))
    net.weight.data = torch.frombuffer(memory, dtype=torch.float32).view(1, 3)
    assert versions(second(net, replicator)) != before


def test_without_cache_each_forward_has_copies_of_its_own() -> None:
    net, replicator = module(), Replicator(DEVICES, cache=False)
    before, after = second(net, replicator), second(net, replicator)
    assert not {id(p) for p in after.parameters} & {id(p) for p in before.parameters}


class Holding(nn.Module):
    """Calls functions that hold on to it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.scale = nn.Linear(3, 4), nn.Parameter(torch.ones(4))
        self.scaled = lambda y: y * self.scale
        self.functions = [self.linear.forward, self.scaled]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for function in self.functions:
            x = function(x)
        return x


def test_functions_that_hold_on_to_the_module_use_the_replicas_parameters() -> None:
    net = Holding()
    replica = second(net, Replicator(DEVICES))
    replica.module(torch.ones(1, 3)).sum().backward()
    assert all(parameter.grad is not None for parameter in replica.parameters)
    assert all(parameter.grad is None for parameter in net.parameters())

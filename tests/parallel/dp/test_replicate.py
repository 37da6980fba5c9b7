"""Gradients that arrive in a replica's leaves get to the right tensor, or nowhere else."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from dpbench.parallel.dp.replicate import Replicator
from tests.parallel.dp.modules import batch, perceptron

X = batch(7)


class Scaled(nn.Module):
    """Multiplies with a tensor that has a history, and is neither parameter nor argument."""

    scale: Tensor

    def __init__(self, place: Callable[[nn.Module, Tensor], None], scale: Tensor) -> None:
        super().__init__()
        self.inner = perceptron()
        place(self, scale)

    def forward(self, x: Tensor) -> Tensor:
        held = self.held[0]["scale"] if hasattr(self, "held") else self.scale
        return self.inner(x) * held


def as_attribute(module: nn.Module, scale: Tensor) -> None:
    module.scale = scale


def in_a_list(module: nn.Module, scale: Tensor) -> None:
    module.held = [{"scale": scale}]  # type: ignore[assignment]


def as_buffer(module: nn.Module, scale: Tensor) -> None:
    module.register_buffer("scale", scale)


DEVICES = [torch.device("cpu"), torch.device("meta")]
"""The second stands for a device with memory of its own; copies to it are made all the same."""


def module() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))


SIZE = sum(parameter.nbytes for parameter in module().parameters())
WEIGHT = 4 * 3 * 4


def step(net: nn.Sequential) -> None:
    net(torch.ones(2, 3)).sum().backward()
    torch.optim.SGD(net.parameters(), lr=0.1).step()


def edit(net: nn.Sequential) -> None:
    with torch.no_grad():
        net[0].weight.add_(1)


def load(net: nn.Sequential) -> None:
    net.load_state_dict(net.state_dict())


def freeze(net: nn.Sequential) -> None:
    net[0].weight.requires_grad_(False)


def convert(net: nn.Sequential) -> None:
    net.double()


def add(net: nn.Sequential) -> None:
    net[0].register_parameter("more", nn.Parameter(torch.zeros(12)))


def test_an_unchanged_module_costs_no_copy() -> None:
    net, replicator = module(), Replicator(DEVICES)
    for _ in range(3):
        replicas = replicator.replicate(net, 2)
        assert replicator.replicate_bytes == SIZE
    assert [p.device for p in replicas[1].module.parameters()] == [DEVICES[1]] * 4


@pytest.mark.parametrize(
    ("change", "copied"),
    [
        (step, SIZE),
        (edit, SIZE),
        (load, SIZE),
        (freeze, SIZE),
        (convert, 2 * SIZE),
        (add, SIZE + WEIGHT),
        (Replicator.forget, SIZE),
    ],
)
def test_what_changed_is_copied_again(change: Callable[..., None], copied: int) -> None:
    net, replicator = module(), Replicator(DEVICES)
    replicator.replicate(net, 2)
    change(replicator if change is Replicator.forget else net)
    [_, replica] = replicator.replicate(net, 2)
    assert replicator.replicate_bytes == SIZE + copied
    for one, other in zip(replica.module.parameters(), net.parameters(), strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        assert one.requires_grad == other.requires_grad


def test_without_cache_each_forward_copies() -> None:
    net, replicator = module(), copy.deepcopy(Replicator(DEVICES, cache=False))
    for _ in range(3):
        replicator.replicate(net, 2)
    assert replicator.replicate_bytes == 3 * SIZE

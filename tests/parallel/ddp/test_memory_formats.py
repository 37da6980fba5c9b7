"""Gradients stay exact when parameters or gradients get another layout after wrapping."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dpbench.parallel import DistributedDataParallel as Ddp
from tests.parallel.ddp.one_process import assert_same, gradients, mean_gradients
from tests.parallel.worlds import World

world = World(backend="gloo")


def images() -> nn.Sequential:
    """The gradient of its largest layer is copied into the bucket by itself."""
    torch.manual_seed(0)
    first, second = nn.Conv2d(3, 32, 3), nn.Conv2d(32, 32, 3)
    return nn.Sequential(first, nn.ReLU(), second, nn.Flatten(), nn.Linear(512, 2)).double()


def step(module: nn.Module, rank: int) -> None:
    pixels = torch.Generator().manual_seed(rank)
    batch = torch.randn(2, 3, 8, 8, generator=pixels, dtype=torch.float64)
    module(batch).pow(2).mean().backward()


def channels_last(module: nn.Module) -> None:
    module.to(memory_format=torch.channels_last)


def other_strides(module: nn.Module) -> None:
    for parameter in module.parameters():
        if parameter.dim() == 4:
            parameter.data = parameter.data.transpose(0, 1).contiguous().transpose(0, 1)


def gradients_in_other_memory(module: nn.Module) -> None:
    for parameter in module.parameters():
        parameter.grad.data = parameter.grad.data.clone()


def after(
    change: Callable[[nn.Module], None], wrap: Callable[..., nn.Module], rank: int, **options: Any
) -> list[dict[str, Tensor | None]]:
    """The gradients of steps after two steps and a change of the module."""
    ddp = wrap(images(), **options)
    for _ in range(2):
        ddp.zero_grad()
        step(ddp, rank)
    change(ddp.module)
    found = []
    for set_to_none in (False, True, True):
        ddp.zero_grad(set_to_none=set_to_none)
        step(ddp, rank)
        found.append(gradients(ddp))
    return found


@world.body
def gradients_are_those_of_one_process(rank: int) -> None:
    expected = mean_gradients(images, step)
    changes = (channels_last, other_strides, gradients_in_other_memory)
    groups = (None, dist.new_group(backend="shm"))
    for change, group, as_view in product(changes, groups, (False, True)):
        options = {"process_group": group, "gradient_as_bucket_view": as_view}
        for got in after(change, Ddp, rank, **options):
            assert_same(got, expected)


@world.body
def a_gradient_keeps_the_strides_of_its_parameter(rank: int) -> None:
    """Fused optimizers take the memory of both as it is."""
    for as_view in (False, True):
        ddp = Ddp(images(), gradient_as_bucket_view=as_view)
        for _ in range(2):
            step(ddp, rank)
        ddp.zero_grad()
        channels_last(ddp.module)
        step(ddp, rank)
        for parameter in ddp.parameters():
            assert parameter.grad.stride() == parameter.stride()


@world.body
def those_of_torchs_class_are_wrong(rank: int) -> None:
    """docs/parallel.md says so."""
    expected = mean_gradients(images, step)["0.weight"]
    for as_view in (False, True):
        torchs = nn.parallel.DistributedDataParallel
        got = after(channels_last, torchs, rank, gradient_as_bucket_view=as_view)[-1]["0.weight"]
        assert not torch.allclose(got, expected, rtol=1e-3, atol=1e-5)


test_on_ranks = world.test()

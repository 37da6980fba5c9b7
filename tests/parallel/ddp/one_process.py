"""Small models in float64, and the gradients that one process gets for the batches of all ranks."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from dpbench.parallel import DistributedDataParallel as Ddp
from dpbench.parallel.agreement import tensors_sha256

Gradients = dict[str, Tensor | None]
Run = Callable[[nn.Module, int], object]
TINY = 1e-6  # MiB: a bucket per parameter


def perceptron(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4)).double()


class Branches(nn.Module):
    """Three layers, of which each call names those that take part."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c = (nn.Linear(6, width).double() for _ in range(3))

    def forward(self, x: Tensor, use: str = "abc") -> Tensor:
        return sum((self.get_submodule(name)(x) for name in use), x.new_zeros(()))


class Checkpointed(nn.Module):
    """Runs a layer several times in checkpoints."""

    def __init__(self, *, reentrant: bool = False, times: int = 1) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = (nn.Linear(6, 6).double() for _ in range(2))
        self.reentrant, self.times = reentrant, times

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        for _ in range(self.times):
            x = checkpoint(self.b, x.tanh(), use_reentrant=self.reentrant)
        return x


def batches(seed: int, count: int = 2, size: int = 5) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, size, 6, generator=generator, dtype=torch.float64)


def step(module: nn.Module, seed: int, rank: int) -> None:
    module(batches(seed, dist.get_world_size())[rank]).pow(2).mean().backward()


def one_step(module: nn.Module, rank: int) -> None:
    step(module, 0, rank)


def bare(module: nn.Module) -> nn.Module:
    """The module inside of a wrapper, ours or torch's, or the module itself."""
    return module.module if isinstance(module, nn.parallel.DistributedDataParallel) else module


def gradients(module: nn.Module) -> Gradients:
    """Copies of the gradients, by parameter of the bare module."""
    named = bare(module).named_parameters()
    return {name: None if p.grad is None else p.grad.clone() for name, p in named}


def digest(module: nn.Module) -> str:
    """A hash of the state dict."""
    return tensors_sha256(module.state_dict().items())


def mean_gradients(make: Callable[[], nn.Module], run: Run = one_step) -> Gradients:
    """What `run(module, rank)` leaves in `.grad`, averaged; None where no rank has a gradient."""
    by_rank = []
    for rank in range(dist.get_world_size()):
        run(module := make(), rank)
        by_rank.append(gradients(module))
    means: Gradients = {}
    for name in by_rank[0]:
        present = [grad for found in by_rank if (grad := found[name]) is not None]
        means[name] = reduce(torch.add, present) / len(by_rank) if present else None
    return means


def assert_same(got: Gradients, expected: Gradients, tolerance: float = 1e-12) -> None:
    assert got.keys() == expected.keys() != set()
    for name, want in expected.items():
        have = got[name]
        assert (have is None) == (want is None), f"{name}: got {have}, expected {want}"
        if have is not None and want is not None:
            close = torch.isclose(have.to_dense(), want.to_dense(), tolerance, tolerance)
            assert close.all(), f"{name}: got {have}, expected {want}"


def check_steps(
    make: Callable[[], nn.Module], run: Run, rank: int, steps: int = 3, **options: Any
) -> Ddp:
    """Several equal iterations of a wrapped module give the mean of the ranks, with the same bits
    on all of them; returns it."""
    ddp = Ddp(make(), **options)
    expected = mean_gradients(make, run)
    for _ in range(steps):
        ddp.zero_grad()
        run(ddp, rank)
        found = gradients(ddp)
        assert_same(found, expected)
        hashes = everywhere(tensors_sha256((n, g) for n, g in found.items() if g is not None))
        assert len(set(hashes)) == 1
    return ddp


def everywhere(value: object) -> list[Any]:
    """The values of all ranks."""
    values: list[object] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def error_everywhere(call: Callable[[], object], kind: type[Exception] = RuntimeError) -> str:
    """The message of the error that `call` must raise: the same on every rank."""
    with pytest.raises(kind) as caught:
        call()
    words = str(caught.value)
    assert set(everywhere(words)) == {words}
    return words

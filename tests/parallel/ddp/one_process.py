"""Small models in float64, and the gradients that one process gets for the batches of all ranks."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dpbench.parallel import DistributedDataParallel as Ddp

Gradients = dict[str, Tensor | None]
Run = Callable[[nn.Module, int], object]
TINY = 1e-6  # MiB: a bucket per parameter


def perceptron(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4)).double()


class Branches(nn.Module):
    """Three layers, of which each call names those that take part."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c = (nn.Linear(6, 4).double() for _ in range(3))

    def forward(self, x: Tensor, use: str = "abc") -> Tensor:
        return sum((self.get_submodule(name)(x) for name in use), x.new_zeros(()))


def batches(seed: int, count: int = 2, size: int = 5) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, size, 6, generator=generator, dtype=torch.float64)


def step(module: nn.Module, seed: int, rank: int) -> None:
    module(batches(seed, dist.get_world_size())[rank]).pow(2).mean().backward()


def gradients(module: nn.Module) -> Gradients:
    """By parameter of the bare module; copies."""
    bare = (
        module.module if isinstance(module, (Ddp, nn.parallel.DistributedDataParallel)) else module
    )
    return {name: None if p.grad is None else p.grad.clone() for name, p in bare.named_parameters()}


def digest(module: nn.Module) -> str:
    """A hash of the state dict."""
    data = [t.detach().reshape(-1).view(torch.uint8) for t in module.state_dict().values()]
    return hashlib.sha256(torch.cat(data).numpy().tobytes()).hexdigest()


def mean_gradients(make: Callable[[], nn.Module], run: Run, ranks: int | None = None) -> Gradients:
    """What `run(module, rank)` leaves in `.grad`, averaged; None where no rank has a gradient."""
    size = ranks or dist.get_world_size()
    each = []
    for rank in range(size):
        module = make()
        run(module, rank)
        each.append(gradients(module))
    return {name: _mean([grads[name] for grads in each]) for name in each[0]}


def _mean(parts: list[Tensor | None]) -> Tensor | None:
    present = [part for part in parts if part is not None]
    if not present:
        return None
    total = present[0].clone()
    for part in present[1:]:
        total = total + part
    return total / len(parts)


def assert_same(got: Gradients, expected: Gradients, tolerance: float = 1e-12) -> None:
    assert got.keys() == expected.keys() != set()
    for name, want in expected.items():
        have = got[name]
        if want is None:
            assert have is None, f"{name} has a gradient"
        else:
            assert have is not None, f"{name} has no gradient"
            close = torch.isclose(have.to_dense(), want.to_dense(), tolerance, tolerance)
            assert close.all(), f"{name}: got {have}, expected {want}"


def check_steps(
    make: Callable[[], nn.Module], run: Run, rank: int, steps: int = 3, **options: Any
) -> Ddp:
    """Several equal iterations of a wrapped module give the mean of the ranks; returns it."""
    ddp = Ddp(make(), **options)
    expected = mean_gradients(make, run)
    for _ in range(steps):
        ddp.zero_grad()
        run(ddp, rank)
        assert_same(gradients(ddp), expected)
        assert_equal_everywhere(ddp)
    return ddp


def everywhere(value: object) -> list[Any]:
    """The values of all ranks."""
    values: list[object] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def assert_equal_everywhere(module: nn.Module) -> None:
    """The gradients of all ranks have the same bits."""
    everyone = everywhere({name: _bits(grad) for name, grad in gradients(module).items()})
    assert all(other == everyone[0] for other in everyone)


def _bits(gradient: Tensor | None) -> bytes | None:
    if gradient is None:
        return None
    return gradient.to_dense().flatten().contiguous().view(torch.uint8).numpy().tobytes()

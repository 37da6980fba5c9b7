"""Modules, batches and comparisons that several tests of this folder share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpbench.parallel import DataParallel

F64 = torch.float64


def perceptron() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4)).to(F64)


def batch(size: int, seed: int = 0) -> Tensor:
    return torch.randn(size, 6, generator=torch.Generator().manual_seed(seed), dtype=F64)


def parallel(module: nn.Module, replicas: int, **options: Any) -> DataParallel:
    return DataParallel(module, ["cpu"] * replicas, **options)


def gradients(module: nn.Module) -> list[Tensor | None]:
    return [None if p.grad is None else p.grad.clone() for p in module.parameters()]


def assert_same(got: Sequence[Tensor | None], expected: Sequence[Tensor | None]) -> None:
    assert len(got) == len(expected) > 0
    for one, other in zip(got, expected, strict=True):
        if one is None or other is None:
            assert one is other
        else:
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


class Losses(nn.Module):
    """Returns [logits, loss], with the targets as a keyword."""

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        self.inner = perceptron()
        self.reduction = reduction

    def forward(self, x: Tensor, *, targets: Tensor) -> list[Tensor]:
        logits = self.inner(x)
        return [logits, F.mse_loss(logits, targets, reduction=self.reduction)]

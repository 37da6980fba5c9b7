"""Modules, batches and comparisons that several tests of this folder share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpbench.parallel import DataParallel
from tests.parallel.ddp.one_process import assert_same, gradients, perceptron

F64 = torch.float64


def batch(size: int, seed: int = 0) -> Tensor:
    return torch.randn(size, 6, generator=torch.Generator().manual_seed(seed), dtype=F64)


def parallel(module: nn.Module, replicas: int, **options: Any) -> DataParallel:
    return DataParallel(module, ["cpu"] * replicas, **options)


def square_mean(module: nn.Module, size: int = 5) -> Tensor:
    """A loss of a batch of `size` samples."""
    return module(batch(size)).pow(2).mean()


def check_like_alone(
    module: nn.Module, replicas: int, run: Callable[[nn.Module], Tensor] = square_mean
) -> None:
    """Loss and gradients with and without the wrapper are the same, at the first step, which runs
    the replicas one after another, and after that of an optimizer older than the wrapper."""
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    wrapper = parallel(module, replicas)
    for _ in range(2):
        module.zero_grad()
        expected_loss = run(module)
        expected_loss.backward()
        expected = gradients(module)
        module.zero_grad()
        loss = run(wrapper)
        loss.backward()
        torch.testing.assert_close(loss, expected_loss, rtol=1e-12, atol=1e-12)
        assert_same(gradients(module), expected)
        optimizer.step()


class Losses(nn.Module):
    """Returns [logits, loss], with the targets as a keyword."""

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        self.inner = perceptron()
        self.reduction = reduction

    def forward(self, x: Tensor, *, targets: Tensor) -> list[Tensor]:
        logits = self.inner(x)
        return [logits, F.mse_loss(logits, targets, reduction=self.reduction)]

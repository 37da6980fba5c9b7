"""A regression with a known answer, and functions that processes can import."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpbench.api.dp_train import dp_train
from dpbench.training.dp_train import TrainingResult

F64 = torch.float64
Sample = tuple[Tensor, Tensor]


def samples(count: int = 12) -> list[Sample]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, 3, generator=generator, dtype=F64)
    y = x @ torch.tensor([[1.0], [-2.0], [0.5]], dtype=F64) + 0.3
    return list(zip(x, y, strict=True))


def make_model() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)).double()


def make_noisy_model() -> nn.Sequential:
    """With dropout and with a buffer that every sample changes."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), Counting(), nn.Linear(8, 1)).double()


class Counting(nn.Module):
    """Scales by a running mean of what it saw, and counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.ones((), dtype=F64))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.mean.mul_(0.9).add_(0.1 * x.detach().abs().mean())
        return x / self.mean


def forward(model: nn.Module, sample: Sample) -> Any:
    return model(sample[0])


def target(sample: Sample) -> Tensor:
    return sample[1]


def infinite_on(index: int, model: nn.Module, sample: Sample) -> Tensor:
    loss = F.mse_loss(model(sample[0]), sample[1])
    return loss * float("inf") if torch.equal(sample[0], samples()[index][0]) else loss


def run(**changes: Any) -> TrainingResult:
    options: dict[str, Any] = {
        "n_gpu": 2,
        "n_iter": 20,
        "optimizer": torch.optim.SGD,
        "lr": 0.05,
        "loss_fn": F.mse_loss,
        "forward_fn": forward,
        "target_fn": target,
        "verbose": None,
    }
    options.update(changes)
    data = options.pop("data", samples())
    return dp_train(options.pop("make_model", make_model), data, **options)

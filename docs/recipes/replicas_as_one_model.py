"""Check that replicas of one sample train as one model on batches, and print their speeds.

Losses also fall with a wrong average of the gradients, so they prove little. The parameters of one
model that was trained on the same samples, as batches, prove it. The exit status is 1 if a check
fails.

python docs/recipes/replicas_as_one_model.py
"""

from __future__ import annotations

import math
import sys
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import dpbench

Sample = tuple[Tensor, Tensor]
Mode = Literal["sequential", "threads", "processes"]
STEPS, SEED = 100, 42
TOLERANCE = 1e-12
"""Largest difference of a parameter, in float64, that counts as equal."""
WEIGHTS = ((0.5, 0.8, 0.2, -0.4), (-0.3, -0.1, 0.6, 0.9))


def make_data() -> Sample:
    """Inputs (128, 4) and targets (128, 2) of a linear map with noise, in float64."""
    generator = torch.Generator().manual_seed(SEED)
    inputs = torch.randn(128, 4, generator=generator, dtype=torch.float64)
    noise = torch.randn(128, 2, generator=generator, dtype=torch.float64)
    return inputs, inputs @ torch.tensor(WEIGHTS, dtype=torch.float64).T + 0.05 * noise


def make_model() -> nn.Module:
    """The same weights in every call."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2)).double()


def forward(model: nn.Module, sample: Sample) -> Tensor:
    output: Tensor = model(sample[0])
    return output


def target(sample: Sample) -> Tensor:
    return sample[1]


def train_replicas(count: int, mode: Mode = "sequential") -> dpbench.TrainingResult:
    gpus = torch.cuda.device_count()
    return dpbench.dp_train(
        make_model,
        list(zip(*make_data(), strict=True)),
        devices=[f"cuda:{i % gpus}" if gpus > 1 else "cpu" for i in range(count)],
        mode=mode,
        n_iter=STEPS,
        lr=0.05,
        optimizer=torch.optim.SGD,
        loss_fn=F.mse_loss,
        forward_fn=forward,
        target_fn=target,
        verbose=False,
    )


def train_one_model(replicated: dpbench.TrainingResult) -> nn.Module:
    """The plain loop, on what all replicas of a step had as one batch."""
    model, (inputs, targets) = make_model(), make_data()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in replicated.indices:
        batch = [index for replica in step for index in replica]
        optimizer.zero_grad()
        F.mse_loss(model(inputs[batch]), targets[batch]).backward()
        optimizer.step()
    return model


def largest_difference(one: nn.Module, other: nn.Module) -> float:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max(float((a.cpu() - b.cpu()).detach().abs().max()) for a, b in pairs)


def main() -> bool:
    """Check 1, 2 and more replicas; returns whether all checks hold."""
    gpus = torch.cuda.device_count()
    all_hold = True
    for count in sorted({1, 2, gpus if gpus > 1 else 4}):
        result = train_replicas(count)
        difference = largest_difference(result.model, train_one_model(result))
        losses, third = result.loss_history, STEPS // 3
        before, after = sum(losses[:third]) / third, sum(losses[-third:]) / third
        holds = all(map(math.isfinite, losses)) and after < before and difference <= TOLERANCE
        all_hold = all_hold and holds
        print(
            f"{count} replicas: loss {before:.4f} -> {after:.4f}, at most {difference:.1e} from "
            f"one model: {'ok' if holds else 'FAILED'}"
        )
    return all_hold


def print_speeds() -> None:
    """Print samples/s. So small a model waits more than it computes: expect no speedup."""
    modes: tuple[Mode, ...] = ("sequential", "threads", "processes")
    for mode in modes:
        for count in (1, 2, 4):
            result = train_replicas(count, mode)
            speed = STEPS * count / result.elapsed_seconds
            print(f"{mode}, {count} replicas: {speed:,.0f} samples/s")


if __name__ == "__main__":
    torch.set_num_threads(1)
    if not main():
        sys.exit(1)
    print_speeds()

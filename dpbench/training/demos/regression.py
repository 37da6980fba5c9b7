"""The task of the dp-train demo: 128 samples of a linear map with noise, and a model 4 → 16 → 2."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpbench.training.demos.plain_loop import Batch, one_by_one
from dpbench.training.dp_train import dp_train
from dpbench.training.result import TrainingResult
from dpbench.training.settings import Mode

SAMPLES, INPUTS, HIDDEN, OUTPUTS = 128, 4, 16, 2
ITERATIONS, LEARNING_RATE, MAX_NORM = 100, 5e-3, 5.0
SEED = 42
TRUE_WEIGHTS = ((0.5, 0.8, 0.2, -0.4), (-0.3, -0.1, 0.6, 0.9))
NOISE = 0.05


def dataset(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """All inputs (128, 4) and targets (128, 2)."""
    generator = torch.Generator().manual_seed(SEED)
    inputs = torch.randn(SAMPLES, INPUTS, generator=generator, dtype=dtype)
    noise = torch.randn(SAMPLES, OUTPUTS, generator=generator, dtype=dtype)
    return inputs, inputs @ torch.tensor(TRUE_WEIGHTS, dtype=dtype).T + NOISE * noise


def make_model() -> nn.Module:
    """With the same weights in every call; the global random state stays as it is."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        return nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, OUTPUTS))


def forward(model: nn.Module, sample: Batch) -> Tensor:
    output: Tensor = model(sample[0])
    return output


def target(sample: Batch) -> Tensor:
    return sample[1]


def train(
    devices: Sequence[str], *, iterations: int = ITERATIONS, mode: Mode = "sequential"
) -> TrainingResult:
    """A replica on each device, one sample per replica and step."""
    return dp_train(
        make_model,
        one_by_one(*dataset()),
        devices=devices,
        mode=mode,
        n_iter=iterations,
        lr=LEARNING_RATE,
        max_norm=MAX_NORM,
        loss_fn=F.mse_loss,
        forward_fn=forward,
        target_fn=target,
        seed=SEED,
        verbose=None,
    )

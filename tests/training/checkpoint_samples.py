"""Small checkpoints of a model that has been trained for a step, and what they are made of."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from dpbench.specs import WorkloadSpec
from dpbench.specs.training import TrainingSpec
from dpbench.training.checkpoint import Checkpoint, Progress

SPEC = TrainingSpec(
    workload=WorkloadSpec(architecture="mlp", dataset="digits", optimizer="sgd"),
    implementation="ddp",
    backend="gloo",
    group_size=2,
    batch_size=8,
    devices=("cpu", "cpu"),
    threads_per_replica=1,
    epochs=3,
)


def trained() -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model with buffers, and an optimizer that has stepped once."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.1)
    module(torch.randn(5, 3)).square().sum().backward()
    optimizer.step()
    return module, optimizer


def checkpoint(step: int = 7, **changes: Any) -> Checkpoint:
    """Of two processes, in the second epoch."""
    module, optimizer = trained()
    made = Checkpoint(
        spec=SPEC,
        progress=Progress(epoch=1, window=2, step=step, best_metric=0.75, epoch_loss_sum=1.5),
        model=module.state_dict(),
        optimizers=[optimizer.state_dict()],
        scaler=None,
        random_states=[{"cpu": torch.get_rng_state(), "cuda": {}}] * 2,
        samples_sha256="5a" * 32,
    )
    return replace(made, **changes)

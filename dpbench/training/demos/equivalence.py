"""n replicas of one sample = one model with batches of n: what a wrong average cannot pass."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn

from dpbench.training.demos import regression
from dpbench.training.demos.plain_loop import (
    as_batches,
    largest_difference,
    one_by_one,
    train_plain,
)
from dpbench.training.dp_train import dp_train

STEPS, LEARNING_RATE = 20, 0.05
TOLERANCE = 1e-12


def difference_from_one_model(devices: Sequence[str]) -> float:
    """The largest difference of a parameter after 20 steps of SGD, in float64."""
    inputs, targets = regression.dataset(torch.float64)
    replicated = dp_train(
        _make_model,
        one_by_one(inputs, targets),
        devices=devices,
        n_iter=STEPS,
        lr=LEARNING_RATE,
        optimizer=torch.optim.SGD,
        loss_fn=F.mse_loss,
        forward_fn=regression.forward,
        target_fn=regression.target,
        verbose=None,
    )
    alone = _make_model()
    sgd = torch.optim.SGD(alone.parameters(), lr=LEARNING_RATE)
    train_plain(alone, as_batches(replicated.indices, inputs, targets), sgd, F.mse_loss)
    return largest_difference(replicated.model, alone)


def _make_model() -> nn.Module:
    return regression.make_model().double()

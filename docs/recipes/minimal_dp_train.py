"""A whole loop in one call: replicas from a function that makes the model, and a list of samples.

python docs/recipes/minimal_dp_train.py
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

import dpbench

Sample = tuple[torch.Tensor, torch.Tensor]


def make_model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))


def main() -> float:
    torch.manual_seed(42)
    inputs = torch.randn(128, 4)
    targets = torch.stack([inputs.sum(dim=1), inputs[:, 0] * 2], dim=1)
    samples: list[Sample] = list(zip(inputs, targets, strict=True))

    result = dpbench.dp_train(
        make_model,
        samples,
        devices=["cpu", "cpu"],  # two replicas, so two samples behind every step
        n_iter=300,
        lr=1e-2,
        max_norm=5.0,
        forward_fn=lambda model, sample: model(sample[0]),
        target_fn=lambda sample: sample[1],
        loss_fn=F.mse_loss,
        verbose=False,
    )
    assert result.last_pass_loss is not None
    print(f"loss {result.loss_history[0]:.3f} -> {result.last_pass_loss:.3f}")
    return result.last_pass_loss


if __name__ == "__main__":
    main()

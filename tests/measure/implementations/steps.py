"""Training steps as users write them."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch


def clipped(model: Any, optimizer: Any, batches: Any, loss: Any) -> torch.Tensor:
    """Right, with what needs reduced gradients between the backward pass and the optimizer."""
    optimizer.zero_grad()
    total: Any = 0.0
    for inputs, targets in batches:
        with model.no_sync() if batches.left else nullcontext():
            value = loss(model(inputs), targets) / len(batches)
            model.backward(value)
        total = total + value.detach()
    torch.nn.utils.clip_grad_norm_(optimizer.parameters(), 1e-2)
    optimizer.step()
    return total  # type: ignore[no-any-return]


def noisy(model: Any, optimizer: Any, batches: Any, loss: Any) -> torch.Tensor:
    """Another step at every call."""
    optimizer.zero_grad()
    for inputs, targets in batches:
        value = loss(model(inputs + torch.rand_like(inputs)), targets)
        model.backward(value)
    optimizer.step()
    return value  # type: ignore[no-any-return]

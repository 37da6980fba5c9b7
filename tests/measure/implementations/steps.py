"""Training steps as users write them."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import Any

import torch


def whole(
    model: Any, optimizer: Any, batches: Any, loss: Any, max_norm: float | None = None
) -> torch.Tensor:
    """What dpbench does itself, and clipping, which needs gradients that are reduced."""
    optimizer.zero_grad()
    total: Any = 0.0
    for inputs, targets in batches:
        with model.no_sync() if batches.left else nullcontext():
            value = loss(model(inputs), targets) / len(batches)
            model.backward(value)
        total = total + value.detach()
    if max_norm is not None:
        optimizer.clip_grad_norm_(max_norm)
    optimizer.step()
    return total  # type: ignore[no-any-return]


clipped = partial(whole, max_norm=1e-2)


def noisy(model: Any, optimizer: Any, batches: Any, loss: Any) -> torch.Tensor:
    """Draws random numbers."""
    optimizer.zero_grad()
    for inputs, targets in batches:
        value = loss(model(inputs + torch.rand_like(inputs)), targets)
        model.backward(value)
    optimizer.step()
    return value  # type: ignore[no-any-return]


def twice(model: Any, optimizer: Any, batches: Any, loss: Any) -> torch.Tensor:
    """Two steps of the optimizer on the same samples, as in adversarial training."""
    samples = list(batches)
    for _ in range(2):
        optimizer.zero_grad()
        for inputs, targets in samples:
            value = loss(model(inputs), targets) / len(samples)
            model.backward(value)
        optimizer.step()
    return value.detach()  # type: ignore[no-any-return]

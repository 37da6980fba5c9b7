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

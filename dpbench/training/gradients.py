"""The mean gradient of the replicas, its norm, and clipping."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

EPSILON = 1e-6
"""Added to the norm before dividing by it, as torch.nn.utils.clip_grad_norm_ does."""


def take_gradients(model: nn.Module) -> list[Tensor | None]:
    """The gradients of all parameters in order, None where there is none; clears them."""
    found = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    return found


def set_mean(model: nn.Module, gradients: Sequence[Sequence[Tensor | None]]) -> None:
    """Σ of the replicas' gradients, in their order, ÷ their number, as gradients of `model`.

    A replica without a gradient counts as zero; without any the parameter has none.
    """
    for parameter, column in zip(model.parameters(), zip(*gradients, strict=True), strict=True):
        found = [gradient.to(parameter.device) for gradient in column if gradient is not None]
        if found:
            parameter.grad = sum(found[1:], found[0]) / len(column)


def clip(model: nn.Module, max_norm: float) -> float:
    """Scale the gradients to the norm `max_norm` if theirs, over all parameters, is larger.

    Returns:
        The norm before; what is not finite is left as it is.
    """
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    if not gradients:
        return 0.0
    # On the values of a sparse gradient, which has been summed and so has no index twice.
    values = [g if g.layout is torch.strided else g.coalesce().values() for g in gradients]
    norms = torch.stack([torch.linalg.vector_norm(value) for value in values])
    norm = float(torch.linalg.vector_norm(norms))
    if max_norm < norm < float("inf"):
        for gradient in gradients:
            gradient.mul_(max_norm / (norm + EPSILON))
    return norm

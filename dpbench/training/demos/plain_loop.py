"""The plain single-process loop, without any of dpbench: what dp_train is compared with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor, nn

from dpbench.training.result import Indices

Batch = tuple[Tensor, Tensor]


def train_plain(
    model: nn.Module,
    batches: Iterable[Batch],
    optimizer: torch.optim.Optimizer,
    loss_fn: Callable[[Tensor, Tensor], Tensor],
) -> list[float]:
    """Train `model` on one batch after the other; returns the losses."""
    losses = []
    for inputs, targets in batches:
        optimizer.zero_grad()
        loss = loss_fn(model(inputs), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    return losses


def one_by_one(inputs: Tensor, targets: Tensor) -> list[Batch]:
    """Every sample as a batch of one, as dp_train takes them."""
    return [(inputs[i : i + 1], targets[i : i + 1]) for i in range(len(inputs))]


def as_batches(indices: Iterable[Indices], inputs: Tensor, targets: Tensor) -> Iterator[Batch]:
    """What the replicas of a step trained on, as one batch."""
    for step in indices:
        chosen = [index for replica in step for index in replica]
        yield inputs[chosen], targets[chosen]


def largest_difference(one: nn.Module, other: nn.Module) -> float:
    """Over all parameters, of two models of the same structure."""
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max(float((a.detach().cpu() - b.detach().cpu()).abs().max()) for a, b in pairs)

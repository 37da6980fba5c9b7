"""Gradient accumulation: one large batch as several micro-batches of any sizes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from dpbench.parallel.dp.data_parallel import DataParallel
from dpbench.parallel.dp.scatter import batch_size


def accumulate(wrapper: DataParallel, batches: Iterable[Any]) -> Tensor:
    """Run forward and `wrapper.backward` on each micro-batch; the gradients add up.

    With a loss that is a mean, micro-batch i of n_i samples weighs n_i / Σ n_i, so that the
    gradients are those of one batch of all samples, whatever the sizes; with
    loss_reduction="sum" each weighs 1. Does not clear `.grad` before.

    Args:
        wrapper: around a module that returns its loss.
        batches: the arguments of each call: a tuple of positional ones, a dict of keyword ones, or
            a single argument.

    Returns:
        The loss of the whole batch, 0-dim, without graph.

    Raises:
        ValueError: there are no batches, or one has no samples to count; raised before anything
            runs.
        RuntimeError: an output has no loss, see DataParallel.backward.
    """
    calls = [split_call(batch) for batch in batches]
    if not calls:
        raise ValueError("got no batches to accumulate, expected at least one")
    sizes = [samples_in(call, index, wrapper.dim) for index, call in enumerate(calls)]
    losses = []
    for (args, kwargs), size in zip(calls, sizes, strict=True):
        weight = size / sum(sizes) if wrapper.loss_reduction == "mean" else 1.0
        wrapper(*args, **kwargs)
        losses.append(weight * wrapper.backward(weight))
    return sum(losses[1:], losses[0])


def split_call(batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments from a tuple, a dict, or a single argument."""
    if isinstance(batch, dict):
        return (), batch
    return (batch if isinstance(batch, tuple) else (batch,)), {}


def samples_in(call: Any, index: int, dim: int) -> int:
    """The number of samples in batch number `index`; ValueError if it has none."""
    size = batch_size(call, dim)
    if not size:
        raise ValueError(f"batch {index} has {size or 'no'} samples along dim {dim} to count")
    return size

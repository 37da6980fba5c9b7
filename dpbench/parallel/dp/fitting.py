"""Train and apply a DataParallel in one call each, also with one large batch in micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from dpbench.parallel.dp.data_parallel import DataParallel
from dpbench.parallel.dp.scatter_gather import batch_size, gather
from dpbench.parallel.tree import move


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
    calls = [_split_call(batch) for batch in batches]
    if not calls:
        raise ValueError("got no batches to accumulate, expected at least one")
    sizes = [_samples_in(call, index, wrapper.dim) for index, call in enumerate(calls)]
    losses = []
    for (args, kwargs), size in zip(calls, sizes, strict=True):
        weight = size / sum(sizes) if wrapper.loss_reduction == "mean" else 1.0
        wrapper(*args, **kwargs)
        losses.append(weight * wrapper.backward(weight))
    return sum(losses[1:], losses[0])


Loss = Callable[[Any, Any], Tensor]


def fit(
    wrapper: DataParallel,
    batches: Iterable[Any],
    optimizer: torch.optim.Optimizer,
    loss: Loss | None = None,
    *,
    epochs: int = 1,
) -> list[float]:
    """Train: forward, loss, backward and optimizer step for each batch, in train mode.

    The wrapper stays in that mode.

    Args:
        wrapper: on one device or several.
        batches: iterated once per epoch, for example a DataLoader. Each is a pair of inputs and
            targets, or without `loss` a batch as in `accumulate`. Inputs are one argument, a tuple
            of positional ones, or a dict of keyword ones.
        optimizer: updates the wrapper's parameters.
        loss: a function of the output and the targets, a mean over samples; targets are moved to
            the output's device first. None means that the module returns its loss.
        epochs: number of passes over the batches.

    Returns:
        The mean loss of each epoch, weighted by the samples of each batch.

    Raises:
        ValueError: an epoch has no batches (such as the second of a generator), or a batch has no
            samples.
        RuntimeError: `loss` is None and an output has no loss; see DataParallel.backward.
    """
    wrapper.train()
    history = []
    for epoch in range(1, epochs + 1):
        losses, sizes = list[Tensor](), list[int]()
        for index, batch in enumerate(batches):
            inputs, targets = (batch, None) if loss is None else batch
            args, kwargs = _split_call(inputs)
            sizes.append(_samples_in((args, kwargs), index, wrapper.dim))
            optimizer.zero_grad()
            output = wrapper(*args, **kwargs)
            if loss is None:
                value = wrapper.backward()
            else:
                if wrapper.output_device is not None:
                    targets = move(targets, wrapper.output_device)
                value = loss(output, targets)
                value.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses.append(value.detach())
        if not losses:
            raise ValueError(f"got no batches in epoch {epoch}, expected some in every epoch")
        # Read once per epoch: on a GPU each read waits for all queued work.
        values: list[float] = torch.stack(losses).tolist()
        history.append(sum(v * n for v, n in zip(values, sizes, strict=True)) / sum(sizes))
    return history


def predict(wrapper: DataParallel, batches: Iterable[Any]) -> Any:
    """The outputs of all batches together, in evaluation mode and without gradients.

    The wrapper stays in that mode.

    Args:
        wrapper: gathers its outputs.
        batches: the inputs of each call, as in `fit`, without targets.

    Returns:
        One output with the samples of all batches, in their order, on the wrapper's output device.

    Raises:
        ValueError: there are no batches, their outputs do not fit together, or the wrapper does not
            gather.
    """
    if wrapper.output_device is None:
        raise ValueError('got a wrapper with output_device="none", expected one that gathers')
    wrapper.eval()
    with torch.no_grad():
        calls = map(_split_call, batches)
        outputs = [wrapper(*args, **kwargs) for args, kwargs in calls]
    if not outputs:
        raise ValueError("got no batches to predict, expected at least one")
    return gather(outputs, wrapper.output_device, wrapper.dim)


def _split_call(batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments from a tuple, a dict, or a single argument."""
    if isinstance(batch, dict):
        return (), batch
    return (batch if isinstance(batch, tuple) else (batch,)), {}


def _samples_in(call: Any, index: int, dim: int) -> int:
    """The number of samples in batch number `index`; ValueError if it has none."""
    size = batch_size(call, dim)
    if not size:
        raise ValueError(f"batch {index} has {size or 'no'} samples along dim {dim} to count")
    return size

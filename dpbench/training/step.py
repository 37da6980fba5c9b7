"""One optimizer step of a training: its learning rate, its gradients and their clipping."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dpbench.data.batch import Batch, sample_count
from dpbench.measure.rank_model import RankModel
from dpbench.parallel.devices import synchronize
from dpbench.specs.training import TrainingSpec


class StepResult(NamedTuple):
    """Results of a step; tensors stay on the device, to be read later."""

    loss_sum: Tensor
    """Sum of the loss over this rank's samples of the step; float64, 0-dimensional."""
    gradient_norm: Tensor | None
    """Gradient norm before clipping; None without clipping."""
    skipped: bool = False
    """Whether the optimizer left the parameters alone, as a gradient overflowed in float16."""


def take_step(
    model: RankModel, batches: Sequence[Batch], number: int, *, rate: float, max_norm: float | None
) -> StepResult:
    """Make optimizer step `number`, counted from 0, at a learning rate on its micro-batches, with
    one reduction in the last; a collective."""
    optimizer, scaler = model.optimizer, model.scaler
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.zero_grad()
    losses = model.accumulate_gradients(batches, len(batches))
    sums = [loss.double() * batch.sample_count for loss, batch in zip(losses, batches, strict=True)]
    scaler.unscale_(optimizer)
    # After the reduction, once per step.
    norm = None if max_norm is None else model.parallel.clip_gradients(max_norm)
    scale = scaler.get_scale()
    model.step_optimizer()
    model.parallel.after_step(number + 1)
    # The scale falls if a gradient overflowed and the step was skipped.
    return StepResult(sum(sums[1:], sums[0]), norm, skipped=scaler.get_scale() < scale)


def learning_rate(spec: TrainingSpec, step: int, steps_per_epoch: int) -> float:
    """The learning rate of optimizer step `step`, counted from 0.

    It falls by the factor `gamma` after each epoch, as with torch's StepLR. Over the first
    `learning_rate_warmup_steps` it also rises in a straight line from the workload's own rate,
    before scaling with the batch: the gradual warm-up of Goyal et al. 2017, arXiv:1706.02677,
    section 2.2. Step `learning_rate_warmup_steps` is the first at the scaled rate.
    """
    rate, begin = spec.scaled_learning_rate, spec.workload.learning_rate
    if step < spec.learning_rate_warmup_steps:
        rate = begin + (rate - begin) * step / spec.learning_rate_warmup_steps
    return rate * spec.gamma ** (step // steps_per_epoch)


def time_forward(module: torch.nn.Module, device: torch.device) -> list[float]:
    """Let each forward pass in training add its samples per second to the list that is returned.

    On a CUDA device each pass waits until the device is idle.
    """
    speeds, begun = list[float](), 0.0

    def begin(*_: Any) -> None:
        nonlocal begun
        synchronize(device)
        begun = perf_counter()

    def end(_: Any, inputs: Any, keywords: Any, outputs: Any) -> None:
        synchronize(device)
        if module.training:
            count = sample_count(inputs=(inputs, keywords))
            speeds.append(count / (perf_counter() - begun))

    module.register_forward_pre_hook(begin)
    module.register_forward_hook(end, with_kwargs=True)
    return speeds

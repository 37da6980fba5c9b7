"""The learning rate of every optimizer step, as a pure function of its number."""

from __future__ import annotations

from functools import partial

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from dpbench.training_spec import TrainingSpec


def rate_factor(
    step: int, *, steps_per_epoch: int, gamma: float, warmup_steps: int = 0, start: float = 1.0
) -> float:
    """The part of the learning rate with which optimizer step `step`, from 0, is made.

    `gamma` to the power of the epoch, as torch's StepLR has it. During the first `warmup_steps`
    also the gradual warm-up of Goyal et al. 2017, arXiv:1706.02677, section 2.2: a straight line
    from `start` to 1, which step `warmup_steps` is the first to reach.
    """
    decay = gamma ** (step // steps_per_epoch)
    if step >= warmup_steps:
        return decay
    return decay * (start + (1.0 - start) * step / warmup_steps)


def build_schedule(
    optimizer: Optimizer, spec: TrainingSpec, steps_per_epoch: int, *, done: int = 0
) -> LambdaLR:
    """Sets the rate of the step after the `done` ones; to be stepped after each, for the next.

    The warm-up begins at the workload's own rate, before it is scaled with the batch; where they
    are the same there is nothing to warm up.
    """
    factor = partial(
        rate_factor,
        steps_per_epoch=steps_per_epoch,
        gamma=spec.gamma,
        warmup_steps=spec.warmup_steps,
        start=spec.workload.learning_rate / spec.learning_rate,
    )
    for group in optimizer.param_groups:
        group["initial_lr"] = spec.learning_rate
    return LambdaLR(optimizer, factor, last_epoch=done - 1)

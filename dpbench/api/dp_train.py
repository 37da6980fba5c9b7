"""`dpbench.dp_train`: a data-parallel training in one call, of a model that a function makes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sized
from typing import Annotated, Any, Literal

import torch
from pydantic import ConfigDict, Field, NonNegativeInt, PositiveFloat, PositiveInt, validate_call
from torch import Tensor, nn

from dpbench.training.dp_train import (
    Callback,
    Recipe,
    TrainingResult,
    replica_devices,
    replica_indices,
    train,
)


@validate_call(config=ConfigDict(strict=True, arbitrary_types_allowed=True))
def dp_train(
    make_model: Any,
    data: Sized,
    *,
    n_gpu: PositiveInt | None = None,
    devices: Annotated[list[Any] | tuple[Any, ...], Field(min_length=1)] | None = None,
    mode: Literal["sequential", "threads", "processes"] = "sequential",
    n_iter: NonNegativeInt = 10,
    batch_per_replica: PositiveInt = 1,
    lr: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1e-3,
    max_norm: PositiveFloat = math.inf,
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.Adam,
    scheduler: Callable[[torch.optim.Optimizer], Any] | None = None,
    loss_fn: Callable[[Any, Any], Tensor] | None = None,
    forward_fn: Callable[[nn.Module, Any], Any] | None = None,
    target_fn: Callable[[Any], Any] | None = None,
    seed: NonNegativeInt = 0,
    verbose: NonNegativeInt | bool | None = 10,
    on_backward: Callback | None = None,
    on_reduce: Callback | None = None,
    on_step: Callback | None = None,
    on_broadcast: Callback | None = None,
) -> TrainingResult:
    """Train replicas of a model on a list of samples.

    In each step every replica computes the gradient of the mean loss of its samples; the gradients
    are averaged over the replicas; the optimizer steps replica 0; all replicas get its parameters
    and buffers. So n replicas of one sample train as one model does on batches of n samples.

    All modes give the same weights up to rounding. Random numbers drawn on the CPU, e.g. by
    dropout, come from one generator per replica. The caller's random state, grad mode and thread
    count do not change. Gradients must be dense.

    Args:
        make_model: makes a new model; called once per replica. All replicas get the weights and
            buffers of the first, and keep the training or evaluation mode in which they are made.
        data: a sequence of samples. Tensors in them are moved to the device.
        n_gpu: number of replicas; None: all visible CUDA devices, or 1. Without any, on the CPU.
        devices: one per replica, e.g. ["cuda:0", "cuda:0"] for two on one GPU.
        mode: who runs the replicas; for "processes", model, data and functions must pickle, and a
            script must call dp_train under `if __name__ == "__main__":`.
        n_iter, batch_per_replica: optimizer steps, and samples per replica in each.
        lr, optimizer, scheduler: optimizer(parameters, lr=lr) and scheduler(optimizer) make them.
        max_norm: the mean gradient is scaled down to this norm, over all parameters.
        loss_fn, forward_fn, target_fn: the loss is loss_fn(forward_fn(model, sample),
            target_fn(sample)); None: the output itself, model(sample), the sample itself.
        seed: seed of the samples' order, shuffled for each pass, and of the replicas' generators.
        verbose: log to "dpbench.training" every so many iterations, the first and the last; True
            means every tenth part. Not in processes.
        on_backward, on_reduce, on_step, on_broadcast: called after that part of each step with the
            iteration, from 1, and the list of models; not in processes.

    Raises:
        TypeError, ValueError: an argument that cannot be used, with its name and value; a loss
            that is no scalar.
        TrainingFailed: a loss or the mean gradient is NaN or infinite; with the sample.
        RuntimeError: models that differ; in processes, a rank raised or died, with the first cause.
    """
    places = replica_devices(n_gpu, devices)
    if mode == "processes" and any((on_backward, on_reduce, on_step, on_broadcast)):
        raise ValueError("got a callback with mode='processes'; use mode='threads'")
    recipe = Recipe(
        data=data,
        indices=replica_indices(len(data), len(places), batch_per_replica, n_iter, seed=seed),
        seed=seed,
        optimizer=optimizer,
        lr=lr,
        scheduler=scheduler,
        max_norm=max_norm,
        loss_fn=loss_fn,
        forward_fn=forward_fn,
        target_fn=target_fn,
        log_every=max(1, n_iter // 10) if verbose is True else int(verbose or 0),
        on_backward=on_backward,
        on_reduce=on_reduce,
        on_step=on_step,
        on_broadcast=on_broadcast,
    )
    return train(recipe, make_model, places, mode)

"""dp_train: data-parallel training from a function that makes the model and a list of samples.

In each step every replica computes the gradient of the mean loss of its samples; the gradients are
averaged over the replicas; the optimizer steps replica 0; all replicas get its parameters and
buffers. So n replicas of one sample train as one model does on batches of n samples.

All modes give the same weights up to rounding: "sequential" is the plain reference for "threads"
and "processes". Random numbers drawn on the CPU, e.g. by dropout, come from one generator per
replica, the same in all modes. The caller's random state, grad mode and thread count do not change.
Gradients must be dense.

Arguments:
    make_model: makes a new model; called once per replica. All replicas get the weights and buffers
        of the first, and keep the training or evaluation mode in which they are made.
    data: a sequence of samples. Tensors in them are moved to the device.
    n_gpu: number of replicas; None means all visible CUDA devices, or 1. Without CUDA devices the
        replicas are on the CPU.
    devices: one per replica, e.g. ["cuda:0", "cuda:0"] for two on one GPU.
    mode: "sequential", "threads", or "processes" (model, data and functions must pickle, and a
        script must call dp_train under `if __name__ == "__main__":`).
    n_iter: number of optimizer steps.
    batch_per_replica: samples per replica and step.
    lr: learning rate, passed to `optimizer` as a keyword.
    max_norm: the mean gradient is scaled down to this norm, over all parameters.
    optimizer: makes one from parameters and lr, e.g. torch.optim.SGD.
    scheduler: makes one from the optimizer; it is stepped after each step.
    loss_fn: loss of (output, target); None: the output is the loss.
    forward_fn: output of (model, sample); None: model(sample).
    target_fn: target of a sample; None: the sample itself.
    seed: seed of the samples' order, shuffled for each pass, and of the replicas' generators.
    on_nonfinite: "raise", or "record": NaN in the history, and the step is skipped.
    verbose: log to "dpbench.training" every so many iterations, the first and the last; True means
        every tenth part. With processes the lines come at the end.
    on_backward, on_reduce, on_step, on_broadcast: called after that part of each step with the
        iteration, from 1, and the list of models; not in processes.
    time_limit_seconds: for all steps, in processes only.

Raises:
    TypeError, ValueError: an argument that cannot be used, with its name and value; models that
        differ; a loss that is no scalar, with iteration, replica and sample.
    NonFinite: a loss or mean gradient is NaN or infinite.
    WorldFailed: in processes, a rank raised, died or took too long; with the first cause.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from dpbench.training.dp_train.arguments import Callback, check, checked, replica_devices
from dpbench.training.dp_train.replicas import make_models
from dpbench.training.dp_train.steps import TrainingResult, train

AtLeastZero = Annotated[int, Field(ge=0)]
AtLeastOne = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Devices = Annotated[list[Any] | tuple[Any, ...], Field(min_length=1)]


@checked
def dp_train(
    make_model: Callable[[], nn.Module],
    data: Any,
    *,
    n_gpu: AtLeastOne | None = None,
    devices: Devices | None = None,
    mode: Literal["sequential", "threads", "processes"] = "sequential",
    n_iter: AtLeastZero = 10,
    batch_per_replica: AtLeastOne = 1,
    lr: Positive = 1e-3,
    max_norm: Annotated[float, Field(gt=0)] = math.inf,
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.Adam,
    scheduler: Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler]
    | None = None,
    loss_fn: Callable[[Any, Any], Tensor] | None = None,
    forward_fn: Callable[[nn.Module, Any], Any] | None = None,
    target_fn: Callable[[Any], Any] | None = None,
    seed: AtLeastZero = 0,
    on_nonfinite: Literal["raise", "record"] = "raise",
    verbose: AtLeastZero | bool | None = 10,
    on_backward: Callback | None = None,
    on_reduce: Callback | None = None,
    on_step: Callback | None = None,
    on_broadcast: Callback | None = None,
    time_limit_seconds: Positive = 24 * 3600.0,
) -> TrainingResult:
    given = {name: value for name, value in locals().items() if name != "make_model"}
    task = SimpleNamespace(**{**given, "devices": replica_devices(n_gpu, devices)})
    check(task)
    with torch.inference_mode(False), torch.enable_grad():
        models = make_models(make_model, task.devices)
        start = time.perf_counter()
        steps = train(models, task)
        seconds = time.perf_counter() - start
    return TrainingResult(
        model=models[0],
        params={name: parameter.detach() for name, parameter in models[0].named_parameters()},
        loss_history=tuple(step.loss for step in steps),
        norm_history=tuple(step.norm for step in steps),
        indices=tuple(step.indices for step in steps),
        skipped_steps=sum(step.skipped for step in steps),
        elapsed_seconds=seconds,
        steps_per_pass=math.ceil(len(data) / (len(task.devices) * batch_per_replica)),
    )


dp_train.__doc__ = __doc__

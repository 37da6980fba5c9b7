"""dp_train: data-parallel training from a function that makes the model and a list of samples.

A step: every replica computes the gradient of the mean loss of its samples; the gradients are
averaged over the replicas; the optimizer steps replica 0; all replicas get its parameters and
buffers. So n replicas of one sample train as one model does on batches of n samples.

All modes give the same weights: "sequential" is the plain reference for "threads" and "processes".
Random numbers drawn on the CPU, e.g. by dropout, come from one stream per replica, the same in
all modes. The caller's random state, grad mode and thread count stay what they are.

Arguments:
    make_model: makes a new model; called once per replica. They all get the weights and buffers of
        the first, and keep the training or evaluation mode that they are made in.
    data: samples that `len` and an index reach. Tensors in them are moved to the device.
    n_gpu: number of replicas; None means all visible CUDA devices, or 1. Without CUDA devices the
        replicas are on the CPU.
    devices: one per replica, e.g. ["cuda:0", "cuda:0"] for two on one GPU.
    mode: "sequential", "threads", or "processes" (model, data and functions must pickle, and no
        gradient may be sparse).
    n_iter: number of optimizer steps.
    batch_per_replica: samples per replica and step.
    lr: given to `optimizer` as a keyword.
    max_norm: the mean gradient is scaled down to this norm, over all parameters.
    optimizer: makes one from parameters and lr, e.g. torch.optim.SGD.
    scheduler: makes one from the optimizer; it is stepped after each step.
    loss_fn: loss of (output, target); None: the output is the loss.
    forward_fn: output of (model, sample); None: model(sample).
    target_fn: target of a sample; None: the sample itself.
    seed: of the samples' order, shuffled anew for each pass, and of the replicas' streams.
    on_nonfinite: "raise", or "record": NaN in the history, and the step is skipped.
    verbose: log to "dpbench.training" every so many iterations, the first and the last; True means
        every tenth part. In processes the lines come at the end.
    on_backward, on_reduce, on_step, on_broadcast: called after that part of each step with the
        iteration, from 1, and the list of models; not in processes.
    time_limit_seconds: for all steps, in processes only.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dpbench.parallel.devices import DeviceLike
from dpbench.training.dp_train.arguments import (
    Callback,
    DpTrainArguments,
    Mode,
    OnNonFinite,
    Scheduler,
    Task,
    check_data,
    choose_devices,
    reporting_period,
)
from dpbench.training.dp_train.loop import generators, round_robin, train
from dpbench.training.dp_train.models import make_models
from dpbench.training.dp_train.processes import train_in_processes
from dpbench.training.dp_train.replicas import Sequential, Threads
from dpbench.training.dp_train.result import History, TrainingResult

log = logging.getLogger("dpbench.training")


def dp_train(
    make_model: Callable[[], nn.Module],
    data: Any,
    *,
    n_gpu: int | None = None,
    devices: Sequence[DeviceLike] | None = None,
    mode: Mode = "sequential",
    n_iter: int = 10,
    batch_per_replica: int = 1,
    lr: float = 1e-3,
    max_norm: float = math.inf,
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.Adam,
    scheduler: Scheduler | None = None,
    loss_fn: Callable[[Any, Any], Tensor] | None = None,
    forward_fn: Callable[[nn.Module, Any], Any] | None = None,
    target_fn: Callable[[Any], Any] | None = None,
    seed: int = 0,
    on_nonfinite: OnNonFinite = "raise",
    verbose: bool | int | None = 10,
    on_backward: Callback | None = None,
    on_reduce: Callback | None = None,
    on_step: Callback | None = None,
    on_broadcast: Callback | None = None,
    time_limit_seconds: float = 24 * 3600.0,
) -> TrainingResult:
    """Train replicas on different samples; the arguments are described at the head of this file.

    Raises:
        TypeError, ValueError: an argument that cannot be used, with its name and value; models
            that differ; a loss that is no scalar, with iteration, replica and sample.
        NonFinite: a loss or mean gradient is NaN or infinite.
        RanksFailed: in processes, a rank raised, died or took too long; with the first cause.
    """
    arguments = DpTrainArguments(
        mode=mode,
        devices=choose_devices(n_gpu, devices),
        n_iter=n_iter,
        batch_per_replica=batch_per_replica,
        lr=lr,
        max_norm=max_norm,
        optimizer=optimizer,
        scheduler=scheduler,
        seed=seed,
        on_nonfinite=on_nonfinite,
        callbacks={
            "on_backward": on_backward,
            "on_reduce": on_reduce,
            "on_step": on_step,
            "on_broadcast": on_broadcast,
        },
        time_limit_seconds=time_limit_seconds,
    )
    period = reporting_period(verbose, n_iter)
    task = Task(data=data, loss_fn=loss_fn, forward_fn=forward_fn, target_fn=target_fn)
    check_data(data, arguments.samples_per_step)
    with torch.inference_mode(False), torch.enable_grad():
        return _run(make_model, arguments, task, period)


def _run(
    make_model: Callable[[], nn.Module], arguments: DpTrainArguments, task: Task, period: int | None
) -> TrainingResult:
    models = make_models(make_model, arguments.devices)
    start = time.perf_counter()
    if arguments.mode == "processes":
        history = train_in_processes(models[0], arguments, task)
        for iteration, loss in enumerate(history.losses, start=1):
            _report(iteration, arguments.n_iter, loss, period)
    else:
        history = _train_here(models, arguments, task, period)
    return TrainingResult(
        model=models[0],
        params={name: parameter.detach() for name, parameter in models[0].named_parameters()},
        loss_history=tuple(history.losses),
        norm_history=tuple(history.norms),
        indices=tuple(history.indices),
        skipped_steps=history.skipped_steps,
        elapsed_seconds=time.perf_counter() - start,
        steps_per_pass=math.ceil(len(task.data) / arguments.samples_per_step),
    )


def _train_here(
    models: Sequence[nn.Module], arguments: DpTrainArguments, task: Task, period: int | None
) -> History:
    shuffle, *streams = generators(arguments.seed, len(models))
    kind = Threads if arguments.mode == "threads" else Sequential
    group = kind(models, arguments, task, streams)
    steps = round_robin(len(task.data), len(models), arguments.batch_per_replica, shuffle)
    try:
        return train(
            arguments, group, steps, lambda i, loss: _report(i, arguments.n_iter, loss, period)
        )
    finally:
        group.close()


def _report(iteration: int, n_iter: int, loss: float, period: int | None) -> None:
    if period and (iteration in (1, n_iter) or iteration % period == 0):
        log.info("iteration %d/%d  loss %.6f", iteration, n_iter, loss)


# So that help(dp_train) says it too.
dp_train.__doc__ = __doc__

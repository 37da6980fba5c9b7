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
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
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
    checked,
    choose_devices,
)
from dpbench.training.dp_train.loop import generators, report, train
from dpbench.training.dp_train.processes import train_in_processes
from dpbench.training.dp_train.replicas import LocalReplicas, make_models
from dpbench.training.dp_train.result import History, TrainingResult


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
        WorldFailed: in processes, a rank raised, died or took too long; with the first cause.
    """
    given = {name: value for name, value in locals().items() if name != "make_model"}
    arguments = checked(**given)
    chosen = choose_devices(n_gpu, devices)
    samples_per_step = len(chosen) * batch_per_replica
    if len(data) < samples_per_step:
        raise ValueError(
            f"got {len(data)} samples for {samples_per_step} in a step (replicas × "
            "batch_per_replica); use fewer replicas or more data"
        )
    with torch.inference_mode(False), torch.enable_grad():
        models = make_models(make_model, chosen)
        start = time.perf_counter()
        history = _train(models, arguments, chosen)
        seconds = time.perf_counter() - start
    return TrainingResult(
        model=models[0],
        params={name: parameter.detach() for name, parameter in models[0].named_parameters()},
        loss_history=tuple(history.losses),
        norm_history=tuple(history.norms),
        indices=tuple(history.indices),
        skipped_steps=history.skipped_steps,
        elapsed_seconds=seconds,
        steps_per_pass=math.ceil(len(data) / samples_per_step),
    )


def _train(
    models: Sequence[nn.Module], arguments: DpTrainArguments, devices: Sequence[torch.device]
) -> History:
    if arguments.mode == "processes":
        history = train_in_processes(models[0], arguments, devices)
        for iteration, loss in enumerate(history.losses, start=1):
            report(arguments, iteration, loss)
        return history
    shuffle, *streams = generators(arguments.seed, len(models))
    if arguments.mode == "sequential":
        replicas = LocalReplicas(models, devices, arguments, streams)
        return train(arguments, replicas, shuffle, reports=True)
    # Setting the number of threads affects one thread only after it was read in the caller.
    share = max(1, torch.get_num_threads() // len(models))
    with ThreadPoolExecutor(len(models), "dp_train", torch.set_num_threads, (share,)) as threads:
        replicas = LocalReplicas(models, devices, arguments, streams, threads)
        return train(arguments, replicas, shuffle, reports=True)


# So that help(dp_train) shows it too.
dp_train.__doc__ = __doc__

"""dp_train: a whole data-parallel training in one call, of a model that a function makes.

It has no part in `dpbench train`: its caller has Python objects, and gets a trained model back.
"""

from __future__ import annotations

import logging
import math
import pickle
import time
from collections.abc import Callable, Sequence, Sized
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from itertools import chain
from typing import Annotated, Any, Literal

import torch
import torch.distributed as dist
from pydantic import ConfigDict, Field, NonNegativeInt, PositiveFloat, PositiveInt, validate_call
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from dpbench.data.sharding import sample_indices
from dpbench.launch.fork_world import fork_world
from dpbench.measure.device import gpu_count
from dpbench.parallel import broadcast_checkpoint, sync_gradients
from dpbench.parallel.devices import parse_device
from dpbench.parallel.dp.parallel_apply import WorkerPool, sum_over_replicas
from dpbench.parallel.dp.random_streams import OwnStream
from dpbench.parallel.torch_private import copy_all
from dpbench.parallel.tree import move
from dpbench.rendezvous.process_group import process_group
from dpbench.training.divergence import require_finite

log = logging.getLogger("dpbench.training")
Callback = Callable[[int, Sequence[nn.Module]], None]
TIME_LIMIT_OF_PROCESSES = timedelta(days=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingResult:
    """The trained model and the history of its training."""

    model: nn.Module
    """Replica 0, on its device, in the mode in which it was made."""
    loss_history: tuple[float, ...]
    """Mean loss over the replicas at each step."""
    norm_history: tuple[float, ...]
    """Norm of the mean gradient over all parameters at each step, before clipping."""
    indices: tuple[tuple[tuple[int, ...], ...], ...]
    """Indices of the samples used, by step and replica."""
    elapsed_seconds: float
    """Seconds of all steps."""

    @property
    def params(self) -> dict[str, Tensor]:
        """Parameters of the model by name, without graph; they share its memory."""
        return {name: parameter.detach() for name, parameter in self.model.named_parameters()}

    @property
    def loss(self) -> float | None:
        """Loss of the last step; None if there was none."""
        return self.loss_history[-1] if self.loss_history else None


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
    callbacks = [on_backward, on_reduce, on_step, on_broadcast]
    if mode == "processes" and any(callbacks):
        raise ValueError("got a callback with mode='processes'; use mode='threads'")
    train = partial(
        train_replicas,
        data=data,
        indices=replica_indices(len(data), len(places), batch_per_replica, n_iter, seed=seed),
        seed=seed,
        functions=(forward_fn, loss_fn, target_fn),
        make_optimizer=partial(optimizer, lr=lr),
        make_scheduler=scheduler,
        max_norm=max_norm,
        callbacks=callbacks,
        log_every=max(1, n_iter // 10) if verbose is True else int(verbose or 0),
    )
    with torch.inference_mode(False), torch.enable_grad():
        models = make_models(make_model, places)
        if mode == "processes":
            return train_in_processes(train, models[0], places)
        return train(models, pool=WorkerPool(places) if mode == "threads" else None)


def replica_indices(
    samples: int, replicas: int, batch_size: int, steps: int, *, seed: int
) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """The sample indices of each replica in each step; no step has one twice.

    Every pass has each index once. A step may end one pass and begin the next. Replica r gets every
    `replicas`-th index of a step, from the r-th. Raises ValueError if there are too few samples.
    """
    if not samples:
        raise ValueError("data is empty, expected at least one sample for each replica")
    size, order = replicas * batch_size, list[int]()
    if samples < size:
        raise ValueError(
            f"got {samples} samples for {size} in a step ({replicas} replicas × {batch_size}); use "
            "fewer replicas or more data"
        )
    while len(order) < steps * size:
        epoch = sample_indices(range(samples), samples, seed=seed, epoch=len(order) // samples)
        # Samples that are in the step that ends this pass come last in the next one.
        order += sorted(epoch.tolist(), key=order[len(order) // size * size :].__contains__)
    every = (order[begin : begin + size] for begin in range(0, steps * size, size))
    return tuple(tuple(tuple(step[i::replicas]) for i in range(replicas)) for step in every)


def train_replicas(
    models: Sequence[nn.Module],
    *,
    data: Any,
    indices: tuple[tuple[tuple[int, ...], ...], ...],
    seed: int,
    functions: Sequence[Callable[..., Any] | None],
    make_optimizer: Callable[..., torch.optim.Optimizer],
    make_scheduler: Callable[[torch.optim.Optimizer], Any] | None,
    max_norm: float,
    callbacks: Sequence[Callback | None],
    log_every: int,
    pool: WorkerPool | None = None,
    group: dist.ProcessGroup | None = None,
) -> TrainingResult:
    """Train all replicas, in the threads of a pool if there is one; or the one of this rank of a
    group. The `functions` are forward_fn, loss_fn and target_fn."""
    start, model, losses, norms = time.perf_counter(), models[0], list[float](), list[float]()
    replicas = range(len(models)) if group is None else [dist.get_rank(group)]
    generators = [torch.Generator().manual_seed(seed + 1 + replica) for replica in replicas]
    optimizer = make_optimizer(model.parameters())
    scheduler = make_scheduler(optimizer) if make_scheduler else None
    on_backward, on_reduce, on_step, on_broadcast = callbacks

    def call(callback: Callback | None) -> None:
        if callback is not None:
            callback(iteration, models)

    for iteration, step in enumerate(indices, start=1):
        jobs = []
        for replica, own, generator in zip(replicas, models, generators, strict=True):
            where = f"iteration {iteration}, replica {replica}"
            job = partial(add_gradient, data, functions, step[replica], where, own, generator)
            jobs.append(job)
        results = pool.run(jobs) if pool else [job() for job in jobs]
        loss = torch.tensor(sum(results) / len(step), dtype=torch.float64)
        call(on_backward)
        average_replicas(models)
        if group is not None:
            dist.all_reduce(loss, group=group)
            sync_gradients(model, process_group=group)
        call(on_reduce)
        losses.append(loss.item())
        norms.append(clip_grad_norm_(model.parameters(), max_norm).item())
        place = f"iteration {iteration}, samples {[*chain(*step)]}"
        require_finite("the norm of the mean gradient", norms[-1], place)
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        call(on_step)
        optimizer.zero_grad()
        for other in models[1:]:
            copy_all(state_of(other), state_of(model))
        if group is not None:
            broadcast_checkpoint(model, process_group=group)
        call(on_broadcast)
        if log_every and (iteration in (1, len(indices)) or iteration % log_every == 0):
            log.info("iteration %d/%d  loss %.6f", iteration, len(indices), losses[-1])
    return TrainingResult(
        model=model,
        loss_history=tuple(losses),
        norm_history=tuple(norms),
        indices=indices,
        elapsed_seconds=time.perf_counter() - start,
    )


def add_gradient(
    data: Any,
    functions: Sequence[Callable[..., Any] | None],
    indices: Sequence[int],
    where: str,
    model: nn.Module,
    generator: torch.Generator,
) -> float:
    """Add the gradient of the mean loss of the samples at `indices` to a replica; returns the loss.

    Random numbers on the CPU come from `generator`. Raises TypeError, ValueError or TrainingFailed,
    with the place, for a loss that is no finite scalar with a gradient.
    """
    forward_fn, loss_fn, target_fn = functions
    device, total = next(model.parameters()).device, 0.0
    for index in indices:
        sample = move(data[index], device)
        with OwnStream(generator) if device.type == "cpu" else nullcontext():
            loss = forward_fn(model, sample) if forward_fn else model(sample)
            if loss_fn is not None:
                loss = loss_fn(loss, target_fn(sample) if target_fn else sample)
        place = f"{where}, sample {index}"
        if not isinstance(loss, Tensor):
            raise TypeError(f"got the loss {loss!r} in {place}, expected a tensor; pass loss_fn?")
        if loss.numel() != 1 or not loss.requires_grad:
            shape = f"of shape {tuple(loss.shape)}, requires_grad={loss.requires_grad}"
            raise ValueError(f"got a loss {shape} in {place}, expected a scalar with a gradient")
        require_finite("the loss", loss.item(), place)
        total += loss.item() / len(indices)
        (loss / len(indices)).backward()  # type: ignore[no-untyped-call]
    return total


def average_replicas(models: Sequence[nn.Module]) -> None:
    """Give the first model the mean gradient of all models, and clear those of the others.

    A replica without a gradient counts as zero; the mean is None if no replica has one.
    """
    first = [*models[0].parameters()]
    gradients = [[parameter.grad for parameter in model.parameters()] for model in models]
    totals = sum_over_replicas(gradients, first[0].device)
    for model in models:
        model.zero_grad()
    for parameter, total in zip(first, totals, strict=True):
        parameter.grad = None if total is None else total / len(models)


def train_in_processes(
    train: Callable[..., TrainingResult], model: nn.Module, devices: Sequence[torch.device]
) -> TrainingResult:
    """Train with a process for each device; then `model` is trained."""
    threads = max(1, torch.get_num_threads() // len(devices))
    # As bytes, since tensors would be sent to the ranks in shared memory.
    work = partial(train_in_rank, pickle.dumps((train, model, devices, threads)))
    result, *_ = fork_world(work, len(devices), timeout=TIME_LIMIT_OF_PROCESSES)
    copy_all(state_of(model), state_of(result.model))
    return replace(result, model=model)


def train_in_rank(content: bytes, rank: int) -> TrainingResult:
    """Train one replica."""
    train, model, devices, threads = pickle.loads(content)
    torch.set_num_threads(threads)
    with process_group("gloo", timeout=TIME_LIMIT_OF_PROCESSES, device="cpu"):
        result: TrainingResult = train([model.to(devices[rank])], group=dist.group.WORLD)
    return result


def state_of(model: nn.Module) -> list[Tensor]:
    """All parameters and buffers, in the order in which they were registered."""
    return [*model.parameters(), *model.buffers()]


def replica_devices(n_gpu: int | None, devices: Sequence[Any] | None) -> list[torch.device]:
    """One device per replica. Raises ValueError for one that is not here."""
    if devices is None:
        visible = gpu_count()
        count = n_gpu or max(1, visible)
        if 0 < visible < count:
            raise ValueError(
                f"got n_gpu={count}, but {visible} CUDA devices are visible; for more replicas "
                "than devices pass devices=[...], e.g. ['cuda:0'] * 2"
            )
        devices = range(count) if visible else ["cpu"] * count
    elif n_gpu not in (None, len(devices)):
        raise ValueError(f"got n_gpu={n_gpu} and {len(devices)} devices; omit one of them")
    return [parse_device(device) for device in devices]


def make_models(
    make_model: Callable[[], nn.Module], devices: Sequence[torch.device]
) -> list[nn.Module]:
    """Call `make_model` once per device; all models get the parameters and buffers of the first.

    Raises TypeError, ValueError or RuntimeError unless it is a function that makes modules of one
    kind, each with parameters of its own.
    """
    if isinstance(make_model, nn.Module) or not callable(make_model):
        raise TypeError(
            f"got make_model={make_model!r}, expected a function: lambda: copy.deepcopy(model)"
        )
    models = [make_model() for _ in devices]
    for index, (model, device) in enumerate(zip(models, devices, strict=True)):
        if not isinstance(model, nn.Module):
            raise TypeError(f"make_model made {model!r}, expected a torch.nn.Module")
        if {*model.parameters()} & {p for other in models[:index] for p in other.parameters()}:
            raise ValueError(
                f"replica {index} has parameters of an earlier one; make_model must make new ones"
            )
        model.to(device).load_state_dict(models[0].state_dict())
        copy_all(state_of(model), state_of(models[0]))  # also buffers that are in no state dict
    return models

"""The engine of `dpbench.dp_train`: replicas of one model that take the same steps.

`dpbench train` has a loop of its own, for options and folders; here a caller has Python objects,
and gets a trained model back.
"""

from __future__ import annotations

import logging
import pickle
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from itertools import chain
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from dpbench.data.sharding import sample_indices
from dpbench.errors import require_finite
from dpbench.launch.fork_world import fork_world
from dpbench.measure.device import gpu_count
from dpbench.parallel import broadcast_checkpoint, sync_gradients
from dpbench.parallel.devices import parse_device
from dpbench.parallel.dp.parallel_apply import WorkerPool, sum_over_replicas
from dpbench.parallel.dp.random_streams import OwnStream
from dpbench.parallel.torch_private import copy_all
from dpbench.parallel.tree import move
from dpbench.rendezvous.process_group import process_group

log = logging.getLogger("dpbench.training")
Callback = Callable[[int, Sequence[nn.Module]], None]
"""Called with the iteration, from 1, and the models."""
Indices = tuple[tuple[tuple[int, ...], ...], ...]
"""Indices of samples, by step and replica."""
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
    indices: Indices
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """What replicas are trained on, and how: the arguments of `dp_train` but for the models."""

    data: Any
    indices: Indices
    seed: int
    optimizer: Callable[..., torch.optim.Optimizer]
    lr: float
    scheduler: Callable[[torch.optim.Optimizer], Any] | None
    max_norm: float
    loss_fn: Callable[[Any, Any], Tensor] | None
    forward_fn: Callable[[nn.Module, Any], Any] | None
    target_fn: Callable[[Any], Any] | None
    log_every: int
    on_backward: Callback | None
    on_reduce: Callback | None
    on_step: Callback | None
    on_broadcast: Callback | None

    def loss(self, model: nn.Module, sample: Any) -> Any:
        """The loss of one sample, or what the caller's functions return in its place."""
        output = self.forward_fn(model, sample) if self.forward_fn else model(sample)
        if self.loss_fn is None:
            return output
        return self.loss_fn(output, self.target_fn(sample) if self.target_fn else sample)


def replica_indices(
    samples: int, replicas: int, batch_size: int, steps: int, *, seed: int
) -> Indices:
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


def train(
    recipe: Recipe,
    make_model: Callable[[], nn.Module],
    devices: Sequence[torch.device],
    mode: Literal["sequential", "threads", "processes"],
) -> TrainingResult:
    """Train a replica on each device: one after another, or in threads or processes.

    Raises what `dp_train` raises.
    """
    with torch.inference_mode(False), torch.enable_grad():
        models = make_models(make_model, devices)
        if mode == "processes":
            return train_in_processes(recipe, models[0], devices)
        return train_replicas(recipe, models, WorkerPool(devices) if mode == "threads" else None)


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


def train_replicas(
    recipe: Recipe,
    models: Sequence[nn.Module],
    pool: WorkerPool | None = None,
    group: dist.ProcessGroup | None = None,
) -> TrainingResult:
    """Train all replicas, in the threads of a pool if there is one; or the one of this rank of a
    group."""
    start, model, losses, norms = time.perf_counter(), models[0], list[float](), list[float]()
    replicas = range(len(models)) if group is None else [dist.get_rank(group)]
    generators = [torch.Generator().manual_seed(recipe.seed + 1 + one) for one in replicas]
    optimizer = recipe.optimizer(model.parameters(), lr=recipe.lr)
    scheduler = recipe.scheduler(optimizer) if recipe.scheduler else None
    for iteration, step in enumerate(recipe.indices, start=1):
        jobs = [
            partial(add_gradient, recipe, iteration, *each)
            for each in zip(replicas, models, generators, strict=True)
        ]
        results = pool.run(jobs) if pool else [job() for job in jobs]
        loss = torch.tensor(sum(results) / len(step), dtype=torch.float64)
        notify(recipe.on_backward, iteration, models)
        average_replicas(models)
        if group is not None:
            dist.all_reduce(loss, group=group)
            sync_gradients(model, process_group=group)
        notify(recipe.on_reduce, iteration, models)
        losses.append(loss.item())
        norms.append(clip_grad_norm_(model.parameters(), recipe.max_norm).item())
        place = f"iteration {iteration}, samples {[*chain(*step)]}"
        require_finite("the norm of the mean gradient", norms[-1], place)
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        notify(recipe.on_step, iteration, models)
        optimizer.zero_grad()
        for other in models[1:]:
            copy_all(state_of(other), state_of(model))
        if group is not None:
            broadcast_checkpoint(model, process_group=group)
        notify(recipe.on_broadcast, iteration, models)
        is_end = iteration in (1, len(recipe.indices))
        if recipe.log_every and (is_end or iteration % recipe.log_every == 0):
            log.info("iteration %d/%d  loss %.6f", iteration, len(recipe.indices), losses[-1])
    return TrainingResult(
        model=model,
        loss_history=tuple(losses),
        norm_history=tuple(norms),
        indices=recipe.indices,
        elapsed_seconds=time.perf_counter() - start,
    )


def notify(callback: Callback | None, iteration: int, models: Sequence[nn.Module]) -> None:
    if callback is not None:
        callback(iteration, models)


def add_gradient(
    recipe: Recipe, iteration: int, replica: int, model: nn.Module, generator: torch.Generator
) -> float:
    """Add the gradient of the mean loss of a replica's samples in one step; returns the loss.

    Random numbers on the CPU come from `generator`. Raises TypeError, ValueError or TrainingFailed,
    with the place, for a loss that is no finite scalar with a gradient.
    """
    device, total = next(model.parameters()).device, 0.0
    indices = recipe.indices[iteration - 1][replica]
    for index in indices:
        sample = move(recipe.data[index], device)
        with OwnStream(generator) if device.type == "cpu" else nullcontext():
            loss = recipe.loss(model, sample)
        place = f"iteration {iteration}, replica {replica}, sample {index}"
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
    recipe: Recipe, model: nn.Module, devices: Sequence[torch.device]
) -> TrainingResult:
    """Train with a process for each device; then `model` is trained."""
    threads = max(1, torch.get_num_threads() // len(devices))
    # As bytes, since tensors would be sent to the ranks in shared memory.
    call = partial(train_in_rank, pickle.dumps((recipe, model, devices, threads)))
    result, *_ = fork_world(call, len(devices), timeout=TIME_LIMIT_OF_PROCESSES)
    copy_all(state_of(model), state_of(result.model))
    return replace(result, model=model)


def train_in_rank(content: bytes, rank: int) -> TrainingResult:
    """Train one replica."""
    recipe, model, devices, threads = pickle.loads(content)
    torch.set_num_threads(threads)
    with process_group("gloo", timeout=TIME_LIMIT_OF_PROCESSES, device="cpu"):
        return train_replicas(recipe, [model.to(devices[rank])], group=dist.group.WORLD)


def state_of(model: nn.Module) -> list[Tensor]:
    """All parameters and buffers, in the order in which they were registered."""
    return [*model.parameters(), *model.buffers()]

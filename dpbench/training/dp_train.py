"""dp_train: data-parallel training from a function that makes the model and a list of samples.

It stands beside `dpbench train` and shares nothing with its epochs, logs and checkpoints: its
caller has Python objects, and gets a trained model back.

`ReplicaSteps` is the loop of every mode: backward on each replica, mean of the gradients, clipping,
optimizer step, broadcast. With processes each of them runs it, for one replica.
"""

from __future__ import annotations

import logging
import math
import pickle
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import chain
from typing import Annotated, Any, Literal

import torch
import torch.distributed as dist
from pydantic import ConfigDict, Field, NonNegativeInt, PositiveFloat, PositiveInt, validate_call
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from dpbench.launch.fork_world import fork_world
from dpbench.measure.device import gpu_count
from dpbench.parallel import sync_gradients
from dpbench.parallel.devices import parse_device
from dpbench.parallel.dp.random_streams import OwnStream
from dpbench.parallel.dp.workers import WorkerPool
from dpbench.parallel.torch_private import broadcast_coalesced
from dpbench.parallel.tree import move
from dpbench.rendezvous.process_group import process_group
from dpbench.training.divergence import require_finite

log = logging.getLogger("dpbench.training")

Callback = Callable[[int, Sequence[nn.Module]], None]
"""Called with the iteration, from 1, and all replicas."""
SchedulerFactory = Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler]
IndicesByReplica = tuple[tuple[int, ...], ...]
"""The samples of one step: for each replica their indices in the data."""
LossesAndNorm = tuple[list[float], float]
"""The mean loss of each replica, and the norm of the mean gradient before clipping."""

MAX_TRAINING = timedelta(days=1)
"""Time limit of the processes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingResult:
    """The trained model and the history of its training."""

    model: nn.Module
    """Replica 0, on its device, in the mode in which it was made."""
    params: dict[str, Tensor]
    """Parameters of the model by name, without graph; they share its memory."""
    loss_history: tuple[float, ...]
    """Mean loss over the replicas at each step."""
    norm_history: tuple[float, ...]
    """Norm of the mean gradient over all parameters at each step, before clipping."""
    indices: tuple[IndicesByReplica, ...]
    """Samples used, by step and replica."""
    elapsed_seconds: float
    """Seconds of all steps; with processes, including their start."""

    @property
    def loss(self) -> float | None:
        """Loss of the last step; None if there was none."""
        return self.loss_history[-1] if self.loss_history else None


@validate_call(config=ConfigDict(strict=True, arbitrary_types_allowed=True))
def dp_train(
    make_model: Any,
    data: Any,
    *,
    n_gpu: PositiveInt | None = None,
    devices: Annotated[list[Any] | tuple[Any, ...], Field(min_length=1)] | None = None,
    mode: Literal["sequential", "threads", "processes"] = "sequential",
    n_iter: NonNegativeInt = 10,
    batch_per_replica: PositiveInt = 1,
    lr: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1e-3,
    max_norm: PositiveFloat = math.inf,
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.Adam,
    scheduler: SchedulerFactory | None = None,
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
            means every tenth part. With processes the lines come at the end.
        on_backward, on_reduce, on_step, on_broadcast: called after that part of each step with the
            iteration, from 1, and the list of models; not in processes.

    Raises:
        TypeError, ValueError: an argument that cannot be used, with its name and value (pydantic's
            ValidationError is a ValueError); models that differ; a loss that is no scalar.
        Diverged: a loss or mean gradient is NaN or infinite; with the samples.
        RuntimeError: in processes, a rank raised or died; with the first cause.
    """
    chosen = replica_devices(n_gpu, devices)
    parts = {"backward": on_backward, "reduce": on_reduce, "step": on_step}
    callbacks = {name: call for name, call in {**parts, "broadcast": on_broadcast}.items() if call}
    if mode == "processes" and callbacks:
        got = ", ".join(f"on_{part}" for part in callbacks)
        raise ValueError(f"got {got} with mode='processes'; use mode='threads'")
    root = torch.Generator().manual_seed(seed)
    order_seed, *seeds = torch.randint(2**62, (1 + len(chosen),), generator=root).tolist()
    steps = ReplicaSteps(
        data=data,
        indices=shuffled_steps(data, len(chosen), batch_per_replica, n_iter, seed=order_seed),
        seeds=seeds,
        loss=partial(sample_loss, forward_fn, loss_fn, target_fn),
        optimizer=partial(optimizer, lr=lr),
        scheduler=scheduler,
        max_norm=max_norm,
        callbacks=callbacks,
    )
    log_every = max(1, n_iter // 10) if verbose is True else int(verbose or 0)
    return train_replicas(make_model, chosen, mode, steps, log_every)


def sample_loss(
    forward_fn: Callable[[nn.Module, Any], Any] | None,
    loss_fn: Callable[[Any, Any], Any] | None,
    target_fn: Callable[[Any], Any] | None,
    model: nn.Module,
    sample: Any,
) -> Any:
    """The loss of a model on a sample; see `dp_train` for the functions."""
    output = forward_fn(model, sample) if forward_fn else model(sample)
    return loss_fn(output, target_fn(sample) if target_fn else sample) if loss_fn else output


@dataclass(frozen=True, kw_only=True)
class ReplicaSteps:
    """All steps of all replicas, which can be sent to processes; for the fields see `dp_train`."""

    data: Any
    indices: tuple[IndicesByReplica, ...]
    seeds: list[int]
    """Seed of each replica's random numbers."""
    loss: Callable[[nn.Module, Any], Any]
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
    scheduler: SchedulerFactory | None
    max_norm: float
    callbacks: dict[str, Callback]
    """The user's, by the part of the step that they follow."""

    def take(
        self, models: Sequence[nn.Module], *, pool: WorkerPool | None, rank: int | None = None
    ) -> Iterator[LossesAndNorm]:
        """Take the steps with all replicas, in the threads of a pool if there is one, or with the
        replica of one rank of a gloo group.

        Every rank gets the mean gradient over all ranks, and so steps its own replica alike. The
        first step whose loss or gradient is not finite is the last.
        """
        model, replicas = models[0], range(len(self.seeds))
        here = replicas if rank is None else [rank]
        optimizer = self.optimizer(model.parameters())
        scheduler = None if self.scheduler is None else self.scheduler(optimizer)
        generators = [torch.Generator().manual_seed(self.seeds[replica]) for replica in here]

        def call(part: str) -> None:
            if part in self.callbacks:
                self.callbacks[part](iteration, models)

        for iteration in range(1, 1 + len(self.indices)):
            jobs = [
                partial(self.add_gradient, iteration, *replica)
                for replica in zip(here, models, generators, strict=True)
            ]
            results = pool.run(jobs) if pool else [job() for job in jobs]
            losses = torch.zeros(len(replicas), dtype=torch.float64)
            losses[here] = torch.tensor(results, dtype=torch.float64)
            call("backward")
            if rank is None:
                average_replicas(models)
            else:
                dist.all_reduce(losses)
                sync_gradients(model)
            call("reduce")
            norm = clip_grad_norm_(model.parameters(), self.max_norm).item()
            optimizer.step()
            if scheduler is not None:
                scheduler.step()
            call("step")
            optimizer.zero_grad()
            for other in models[1:]:
                copy_state(state_of(model), other)
            if rank is not None and dist.group.WORLD is not None:  # parameters are equal
                broadcast_coalesced(model.buffers(), dist.group.WORLD)
            call("broadcast")
            yield losses.tolist(), norm
            if not math.isfinite(sum(losses.tolist(), norm)):
                return

    def add_gradient(
        self, iteration: int, replica: int, model: nn.Module, generator: torch.Generator
    ) -> float:
        """Add the gradient of the mean loss of a replica's samples; returns that loss.

        Random numbers on the CPU come from `generator`. Raises TypeError or ValueError, with
        iteration, replica and sample, for a loss that is no scalar tensor with a gradient.
        """
        device, total = next(model.parameters()).device, 0.0
        samples = self.indices[iteration - 1][replica]
        for index in samples:
            with OwnStream(generator) if device.type == "cpu" else nullcontext():
                loss = self.loss(model, move(self.data[index], device))
            where = f"in iteration {iteration}, replica {replica}, sample {index}"
            if not isinstance(loss, Tensor):
                raise TypeError(f"got the loss {loss!r} {where}, expected a tensor; pass loss_fn?")
            if loss.numel() != 1 or not loss.requires_grad:
                shape = f"of shape {tuple(loss.shape)}, requires_grad={loss.requires_grad}"
                raise ValueError(f"got a loss {shape} {where}, expected a scalar with a gradient")
            (loss / len(samples)).backward()  # type: ignore[no-untyped-call]
            total += loss.item()
        return total / len(samples)


def train_replicas(
    make_model: Any, devices: Sequence[torch.device], mode: str, steps: ReplicaSteps, log_every: int
) -> TrainingResult:
    """Make the models and take the steps; log every so many of them, 0 for none.

    Raises Diverged for the first loss or gradient that is not finite.
    """
    losses, norms, count = list[float](), list[float](), len(steps.indices)
    with torch.inference_mode(False), torch.enable_grad():
        models = make_models(make_model, devices)
        start = time.perf_counter()
        if mode == "processes":
            results: Iterable[LossesAndNorm] = take_in_processes(steps, models[0], devices)
        else:
            results = steps.take(models, pool=WorkerPool(devices) if mode == "threads" else None)
        for iteration, (loss_by_replica, norm) in enumerate(results, start=1):
            step, where = steps.indices[iteration - 1], f"iteration {iteration}"
            for replica, loss in enumerate(loss_by_replica):
                place = f"{where}, replica {replica}, samples {[*step[replica]]}"
                require_finite("the loss", loss, place)
            of_all = f"{where}, samples {[*chain(*step)]}"
            require_finite("the norm of the mean gradient", norm, of_all)
            losses.append(sum(loss_by_replica) / len(devices))
            norms.append(norm)
            if log_every and (iteration in (1, count) or iteration % log_every == 0):
                log.info("iteration %d/%d  loss %.6f", iteration, count, losses[-1])
        seconds = time.perf_counter() - start
    return TrainingResult(
        model=models[0],
        params={name: parameter.detach() for name, parameter in models[0].named_parameters()},
        loss_history=tuple(losses),
        norm_history=tuple(norms),
        indices=steps.indices,
        elapsed_seconds=seconds,
    )


def take_in_processes(
    steps: ReplicaSteps, model: nn.Module, devices: Sequence[torch.device]
) -> list[LossesAndNorm]:
    """Take the steps with a process for each device; then `model` is trained."""
    threads = max(1, torch.get_num_threads() // len(devices))
    # As bytes, since tensors would be sent to the ranks in shared memory.
    work = partial(take_in_rank, pickle.dumps((steps, model, devices, threads)))
    (results, state), *_ = fork_world(work, len(devices), timeout=MAX_TRAINING)
    copy_state(state, model)
    return results


def take_in_rank(content: bytes, rank: int) -> tuple[list[LossesAndNorm], list[Tensor]]:
    """The results of the steps, and on rank 0 the parameters and buffers after them."""
    steps, model, devices, threads = pickle.loads(content)
    torch.set_num_threads(threads)
    model.to(devices[rank])
    with process_group("gloo", timeout=MAX_TRAINING, device="cpu"):
        results = list(steps.take([model], pool=None, rank=rank))
    state = state_of(model) if rank == 0 else []
    return results, [tensor.detach().cpu() for tensor in state]


def replica_devices(n_gpu: int | None, devices: Sequence[Any] | None) -> list[torch.device]:
    """One device per replica. Raises ValueError for one that is not here."""
    if devices is not None:
        if n_gpu not in (None, len(devices)):
            raise ValueError(f"got n_gpu={n_gpu} and {len(devices)} devices; omit one of them")
        return [parse_device(device) for device in devices]
    visible = gpu_count()
    count = n_gpu or max(1, visible)
    if 0 < visible < count:
        raise ValueError(
            f"got n_gpu={count}, but {visible} CUDA devices are visible; for more replicas than "
            "devices pass devices=[...], e.g. ['cuda:0'] * 2"
        )
    return [torch.device(f"cuda:{i}" if visible else "cpu") for i in range(count)]


def shuffled_steps(
    data: Any, replicas: int, batch_per_replica: int, steps: int, *, seed: int
) -> tuple[IndicesByReplica, ...]:
    """The samples of each step; replica r gets every `replicas`-th index of a step, from the r-th.

    Every pass has the index of each sample once, in an order drawn from `seed`. A step may end one
    pass and begin the next, and has no index twice even then.

    Raises TypeError or ValueError unless the data are a sequence that fills a step.
    """
    if not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
        raise TypeError(f"got data of type {type(data).__name__}, expected a sequence of samples")
    samples, size = len(data), replicas * batch_per_replica
    if not samples:
        raise ValueError("data is empty, expected at least one sample for each replica")
    if samples < size:
        raise ValueError(
            f"got {samples} samples for {size} in a step (replicas × batch_per_replica); use fewer "
            "replicas or more data"
        )
    generator = torch.Generator().manual_seed(seed)
    order: list[int] = []
    while len(order) < steps * size:
        # Samples that are in the step that ends this pass come last in the next one.
        begun = order[len(order) // size * size :]
        order += sorted(
            torch.randperm(samples, generator=generator).tolist(), key=begun.__contains__
        )
    every = (order[begin : begin + size] for begin in range(0, steps * size, size))
    return tuple(
        tuple(tuple(step[replica::replicas]) for replica in range(replicas)) for step in every
    )


def make_models(
    make_model: Callable[[], nn.Module], devices: Sequence[torch.device]
) -> list[nn.Module]:
    """Call `make_model` once per device; all models get the parameters and buffers of the first.

    Raises TypeError or ValueError: `make_model` is no function, or does not make modules that have
    parameters of their own with the same names and shapes.
    """
    if isinstance(make_model, nn.Module) or not callable(make_model):
        raise TypeError(
            f"got make_model={make_model!r}, expected a function that makes a new model, e.g. "
            "lambda: copy.deepcopy(model)"
        )
    models = [make_model() for _ in devices]
    seen: set[Tensor] = set()
    for index, model in enumerate(models):
        if not isinstance(model, nn.Module):
            raise TypeError(f"make_model made {model!r}, expected a torch.nn.Module")
        if not any(parameter.requires_grad for parameter in model.parameters()):
            raise ValueError("the model has no parameters to train")
        if seen & {*model.parameters()}:
            raise ValueError(
                f"replica {index} has parameters of an earlier one; make_model must make a new "
                "model in each call"
            )
        seen |= {*model.parameters()}
        try:
            model.to(devices[index]).load_state_dict(models[0].state_dict())
        except RuntimeError as error:
            raise ValueError(f"replica {index} is another model than replica 0: {error}") from None
        copy_state(state_of(models[0]), model)  # also buffers that are in no state dict
    return models


def state_of(model: nn.Module) -> list[Tensor]:
    """All parameters and buffers, in the order in which they were registered."""
    return [*model.parameters(), *model.buffers()]


@torch.no_grad()
def copy_state(values: Sequence[Tensor], model: nn.Module) -> None:
    """Overwrite the parameters and buffers of a model."""
    for target, value in zip(state_of(model), values, strict=True):
        target.copy_(value)


def average_replicas(models: Sequence[nn.Module]) -> None:
    """Give the first model the mean gradient of all replicas, and clear the others'.

    A replica without a gradient counts as zero; the mean is None if no replica has one.
    """
    for alike in zip(*(model.parameters() for model in models), strict=True):
        first = alike[0]
        grads = [p.grad.to(first.device) for p in alike if p.grad is not None]
        for parameter in alike:
            parameter.grad = None
        if grads:
            first.grad = sum(grads[1:], grads[0]) / len(models)

"""The steps of `dp_train`, the same in every mode: backward, average, clip, step, broadcast."""

from __future__ import annotations

import logging
import math
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import chain, islice
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from dpbench.launch.fork_world import fork_world
from dpbench.rendezvous.process_group import process_group
from dpbench.training.dp_train.arguments import Callback, Task
from dpbench.training.dp_train.replicas import average, backward, copy_state, state

log = logging.getLogger("dpbench.training")

Indices = tuple[tuple[int, ...], ...]
"""The samples of one step: for each replica their indices in the data."""


class NonFinite(ArithmeticError):
    """A loss or a gradient is NaN or infinite; `replica` is None for the mean gradient."""

    def __init__(
        self, what: str, iteration: int, samples: tuple[int, ...], replica: int | None = None
    ) -> None:
        where = "" if replica is None else f", replica {replica}"
        super().__init__(
            f"{what} in iteration {iteration}{where}, samples {list(samples)}; lower the learning "
            'rate, check these samples, or pass on_nonfinite="record"'
        )
        self.what = what
        self.iteration = iteration
        self.replica = replica
        self.samples = samples

    def __reduce__(self) -> tuple[Any, ...]:
        # By default an exception is pickled with only its message.
        return NonFinite, (self.what, self.iteration, self.samples, self.replica)


class Step(NamedTuple):
    """The results of one step."""

    indices: Indices
    loss: float
    norm: float
    skipped: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingResult:
    """The trained model and the history of its training."""

    model: nn.Module
    """Replica 0, on its device, in the mode in which it was made."""
    params: dict[str, Tensor]
    """Parameters of the model by name, without graph; they share its memory."""
    loss_history: tuple[float, ...]
    """Mean loss over the replicas at each step; NaN if a replica's loss was not finite."""
    norm_history: tuple[float, ...]
    """Norm of the mean gradient over all parameters at each step, before clipping."""
    indices: tuple[Indices, ...]
    """Samples used, by step and replica."""
    skipped_steps: int
    """Steps without an update, because a loss or the gradient was not finite."""
    elapsed_seconds: float
    """Seconds of all steps; with processes, including their start."""
    steps_per_pass: int
    """Number of steps in which every sample is used once, rounded up."""

    @property
    def loss(self) -> float | None:
        """Loss of the last step; None if there was none."""
        return self.loss_history[-1] if self.loss_history else None

    @property
    def last_pass_loss(self) -> float | None:
        """Mean loss over the last pass through the data; None if there was no step."""
        last = self.loss_history[-self.steps_per_pass :]
        return sum(last) / len(last) if last else None


def train(models: Sequence[nn.Module], task: Task) -> list[Step]:
    """Train the models in the mode of the arguments; see `dp_train` for the errors."""
    if task.mode == "processes":
        return _train_in_processes(models[0], task)
    if task.mode == "sequential":
        return all_steps(models, task)
    # Setting the number of threads affects one thread only after it was read in the caller.
    share = max(1, torch.get_num_threads() // len(models))
    with ThreadPoolExecutor(len(models), "dp_train", torch.set_num_threads, (share,)) as threads:
        return all_steps(models, task, mapping=threads.map)


def all_steps(
    models: Sequence[nn.Module],
    task: Task,
    *,
    mapping: Callable[..., Iterable[float]] = map,
    rank: int | None = None,
) -> list[Step]:
    """Make all steps with all replicas, or with that of one rank of a gloo group.

    Every rank gets the mean gradient over all ranks, and so steps its own replica alike.
    """
    model, count, over_ranks = models[0], len(task.devices), rank is not None
    here = range(count) if rank is None else [rank]
    optimizer = task.optimizer(model.parameters(), lr=task.lr)
    scheduler = None if task.scheduler is None else task.scheduler(optimizer)
    # One generator for the order of the samples, then one per replica.
    root = torch.Generator().manual_seed(task.seed)
    seeds = torch.randint(2**62, (1 + count,), generator=root).tolist()
    shuffle, *generators = (torch.Generator().manual_seed(seed) for seed in seeds)
    own_generators, steps = [generators[replica] for replica in here], list[Step]()

    def call(callback: Callback | None) -> None:
        if callback is not None:
            callback(iteration, models)

    dealt = round_robin(len(task.data), count, task.batch_per_replica, shuffle)
    for iteration, indices in enumerate(islice(dealt, task.n_iter), start=1):
        work, samples = partial(backward, task, iteration), [indices[replica] for replica in here]
        own = mapping(work, here, models, samples, own_generators)
        losses = torch.zeros(count, dtype=torch.float64)
        losses[here] = torch.tensor([*own], dtype=torch.float64)
        if over_ranks:
            dist.all_reduce(losses)
        call(task.on_backward)
        average(models, count, over_ranks=over_ranks)
        call(task.on_reduce)
        norm = get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
        failure = _failure(iteration, indices, losses.tolist(), norm.item())
        if failure is not None and task.on_nonfinite == "raise":
            raise failure
        if failure is None:
            clip_grads_with_norm_(model.parameters(), task.max_norm, norm)
            optimizer.step()
            if scheduler is not None:
                scheduler.step()
        call(task.on_step)
        optimizer.zero_grad()
        copy_state(model, models[1:])
        if over_ranks:  # parameters are equal
            for buffer in model.buffers():
                value = buffer.cpu()
                dist.broadcast(value, src=0)
                buffer.copy_(value)
        call(task.on_broadcast)
        loss = losses.mean().item() if losses.isfinite().all() else math.nan
        steps.append(Step(indices, loss, norm.item(), failure is not None))
        if rank is None:
            report(task, iteration, loss)
    return steps


def _failure(
    iteration: int, samples: Indices, losses: list[float], norm: float
) -> NonFinite | None:
    for replica, (loss, mine) in enumerate(zip(losses, samples, strict=True)):
        if not math.isfinite(loss):
            return NonFinite(f"the loss is {loss}", iteration, mine, replica)
    if not math.isfinite(norm):
        what = f"the norm of the mean gradient is {norm}"
        return NonFinite(what, iteration, tuple(chain(*samples)))
    return None


def _train_in_processes(model: nn.Module, task: Task) -> list[Step]:
    """Train in one process per replica; the weights come back into `model`."""
    ranks = len(task.devices)
    threads = max(1, torch.get_num_threads() // ranks)
    # As bytes, since tensors would be sent to the ranks in shared memory.
    content = pickle.dumps((model, task, threads))
    limit = timedelta(seconds=task.time_limit_seconds)
    (steps, values), *_ = fork_world(partial(_train_rank, content), ranks, timeout=limit)
    with torch.no_grad():
        for target, value in zip(state(model), values, strict=True):
            target.copy_(value)
    if isinstance(steps, NonFinite):
        raise steps
    for iteration, step in enumerate(steps, start=1):
        report(task, iteration, step.loss)
    return steps


def _train_rank(content: bytes, rank: int) -> tuple[list[Step] | NonFinite, list[Tensor]]:
    """The steps of this rank, and on rank 0 the parameters and buffers after them."""
    model, task, threads = pickle.loads(content)
    torch.set_num_threads(threads)
    model.to(task.devices[rank])
    limit = timedelta(seconds=task.time_limit_seconds)
    steps: list[Step] | NonFinite
    with process_group("gloo", timeout=limit, device="cpu"):
        try:
            steps = all_steps([model], task, rank=rank)
        except NonFinite as error:  # on all ranks alike, as they have the same losses
            steps = error
    return steps, [tensor.detach().cpu() for tensor in state(model)] if rank == 0 else []


def report(task: Task, iteration: int, loss: float) -> None:
    """Log the loss if a report is due."""
    verbose, last = task.verbose, task.n_iter
    period = max(1, last // 10) if verbose is True else int(verbose or 0)
    if period and (iteration in (1, last) or iteration % period == 0):
        log.info("iteration %d/%d  loss %.6f", iteration, last, loss)


def round_robin(
    samples: int, replicas: int, batch_per_replica: int, generator: torch.Generator
) -> Iterator[Indices]:
    """Endless steps; replica r gets every `replicas`-th index of a step, from the r-th on.

    Every pass has each of the `samples` indices once, in an order drawn from `generator`. A step
    may end one pass and begin the next, and has no index twice even then.

    Args:
        samples: in the data, at least `replicas * batch_per_replica`.
    """
    size = replicas * batch_per_replica
    waiting: list[int] = []
    while True:
        if len(waiting) < size:
            order = torch.randperm(samples, generator=generator).tolist()
            # The next pass begins with samples that are not yet in this step.
            first = [index for index in order if index not in waiting][: size - len(waiting)]
            waiting += first + [index for index in order if index not in first]
        step, waiting = waiting[:size], waiting[size:]
        yield tuple(tuple(step[replica::replicas]) for replica in range(replicas))

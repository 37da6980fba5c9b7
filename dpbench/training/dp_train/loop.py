"""The loop over all steps, the same in every mode: backward, reduce, clip, step, broadcast.

The samples are shuffled for each pass and dealt round-robin to the replicas.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

import torch
from torch import nn

from dpbench.training.dp_train.arguments import DpTrainArguments
from dpbench.training.dp_train.replicas import Group
from dpbench.training.dp_train.result import History, Indices, NonFinite

EPSILON = 1e-6
"""Added to the norm before dividing by it, as torch.nn.utils.clip_grad_norm_ does."""


def train(
    arguments: DpTrainArguments,
    group: Group,
    steps: Iterable[Indices],
    report: Callable[[int, float], None] | None = None,
) -> History:
    """Run all steps; in a process that does not lead, as long as replica 0 goes on.

    Args:
        report: gets iteration and loss after each step.

    Raises:
        NonFinite: unless arguments.on_nonfinite is "record".
    """
    leader = _Leader(arguments, group) if group.leads else None
    history = History()
    for iteration, samples in enumerate(islice(steps, arguments.n_iter), start=1):
        losses = group.backward(iteration, samples)
        if leader is not None:
            leader.update(iteration, samples, losses, history)
        if not group.broadcast():
            break
        if leader is not None:
            leader.call("on_broadcast", iteration)
        if report is not None:
            report(iteration, history.losses[-1])
    return history


class _Leader:
    """The part of the loop that runs with replica 0."""

    def __init__(self, arguments: DpTrainArguments, group: Group) -> None:
        self._arguments = arguments
        self._group = group
        self._model = group.models[0]
        self._optimizer = arguments.optimizer(self._model.parameters(), lr=arguments.lr)
        make = arguments.scheduler
        self._scheduler = make(self._optimizer) if make is not None else None

    def update(
        self, iteration: int, samples: Indices, losses: list[float], history: History
    ) -> None:
        """Reduce, clip and step with replica 0; or skip the step if something is not finite."""
        self.call("on_backward", iteration)
        self._group.reduce()
        self.call("on_reduce", iteration)
        norm = _clip(self._model, self._arguments.max_norm)
        failure = _failure(iteration, samples, losses, norm)
        if failure is not None and self._arguments.on_nonfinite == "raise":
            raise failure
        history.indices.append(samples)
        history.norms.append(norm)
        finite = all(map(math.isfinite, losses))
        history.losses.append(sum(losses) / len(losses) if finite else math.nan)
        if failure is None:
            self._optimizer.step()
            if self._scheduler is not None:
                self._scheduler.step()
        else:
            history.skipped_steps += 1
        self.call("on_step", iteration)
        self._optimizer.zero_grad()

    def call(self, name: str, iteration: int) -> None:
        callback = self._arguments.callbacks[name]
        if callback is not None:
            callback(iteration, self._group.models)


def _clip(model: nn.Module, max_norm: float) -> float:
    """Scale the gradients to the norm `max_norm` if theirs, over all parameters, is larger.

    Returns:
        The norm before scaling; gradients that are not finite are left unchanged.
    """
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    if not gradients:
        return 0.0
    # For a sparse gradient its values; it has been summed, so no index occurs twice.
    values = [g if g.layout is torch.strided else g.coalesce().values() for g in gradients]
    norms = torch.stack([torch.linalg.vector_norm(value) for value in values])
    norm = float(torch.linalg.vector_norm(norms))
    if max_norm < norm < float("inf"):
        for gradient in gradients:
            gradient.mul_(max_norm / (norm + EPSILON))
    return norm


def _failure(
    iteration: int, samples: Indices, losses: list[float], norm: float
) -> NonFinite | None:
    for replica, (loss, mine) in enumerate(zip(losses, samples, strict=True)):
        if not math.isfinite(loss):
            return NonFinite(f"the loss is {loss}", iteration, mine, replica)
    if not math.isfinite(norm):
        everything = tuple(index for mine in samples for index in mine)
        return NonFinite(f"the norm of the mean gradient is {norm}", iteration, everything)
    return None


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
            waiting += _next_pass(samples, waiting, size - len(waiting), generator)
        step, waiting = waiting[:size], waiting[size:]
        yield tuple(tuple(step[replica::replicas]) for replica in range(replicas))


def _next_pass(
    samples: int, before: list[int], missing: int, generator: torch.Generator
) -> list[int]:
    """A permutation whose first `missing` indices are not in `before`, which is in the same
    step."""
    order = torch.randperm(samples, generator=generator).tolist()
    taken = set(before)
    first = [index for index in order if index not in taken][:missing]
    chosen = set(first)
    return first + [index for index in order if index not in chosen]


def generators(seed: int, replicas: int) -> list[torch.Generator]:
    """One generator for the order of the samples, then one per replica."""
    root = torch.Generator().manual_seed(seed)
    seeds = torch.randint(2**62, (1 + replicas,), generator=root).tolist()
    return [torch.Generator().manual_seed(each) for each in seeds]

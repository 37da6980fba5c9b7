"""The steps of `dp_train`, the same in every mode: backward, average, clip, step, broadcast.

The samples are shuffled for each pass and dealt round-robin to the replicas.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from itertools import islice

import torch
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from dpbench.training.dp_train.arguments import DpTrainArguments
from dpbench.training.dp_train.replicas import LocalReplicas
from dpbench.training.dp_train.result import History, Indices, NonFinite

log = logging.getLogger("dpbench.training")


def train(
    arguments: DpTrainArguments,
    replicas: LocalReplicas,
    shuffle: torch.Generator,
    *,
    reports: bool = False,
) -> History:
    """Run all steps. Raises NonFinite unless arguments.on_nonfinite is "record".

    Args:
        shuffle: source of the order of the samples.
        reports: whether to log losses.
    """
    model = replicas.models[0]
    optimizer = arguments.optimizer(model.parameters(), lr=arguments.lr)
    scheduler = None if arguments.scheduler is None else arguments.scheduler(optimizer)
    history = History()

    def call(name: str) -> None:
        if (callback := getattr(arguments, name)) is not None:
            callback(iteration, replicas.models)

    samples, batch = len(arguments.data), arguments.batch_per_replica
    steps = round_robin(samples, replicas.count, batch, shuffle)
    for iteration, dealt in enumerate(islice(steps, arguments.n_iter), start=1):
        own_losses = replicas.backward(iteration, dealt)
        call("on_backward")
        losses = replicas.average(own_losses)
        call("on_reduce")
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        norm = get_total_norm(gradients)
        failure = _failure(iteration, dealt, losses, norm.item())
        if failure is not None and arguments.on_nonfinite == "raise":
            raise failure
        history.indices.append(dealt)
        history.norms.append(norm.item())
        finite = all(map(math.isfinite, losses))
        history.losses.append(sum(losses) / len(losses) if finite else math.nan)
        if failure is None:
            clip_grads_with_norm_(model.parameters(), arguments.max_norm, norm)
            optimizer.step()
            if scheduler is not None:
                scheduler.step()
        else:
            history.skipped_steps += 1
        call("on_step")
        optimizer.zero_grad()
        replicas.broadcast()
        call("on_broadcast")
        if reports:
            report(arguments, iteration, history.losses[-1])
    return history


def report(arguments: DpTrainArguments, iteration: int, loss: float) -> None:
    """Log the loss if a report is due."""
    period, last = arguments.period, arguments.n_iter
    if period and (iteration in (1, last) or iteration % period == 0):
        log.info("iteration %d/%d  loss %.6f", iteration, last, loss)


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


def generators(seed: int, replicas: int) -> list[torch.Generator]:
    """One generator for the order of the samples, then one per replica."""
    root = torch.Generator().manual_seed(seed)
    seeds = torch.randint(2**62, (1 + replicas,), generator=root).tolist()
    return [torch.Generator().manual_seed(each) for each in seeds]


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

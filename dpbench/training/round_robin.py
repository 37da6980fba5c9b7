"""Which samples each replica gets in each step: a shuffle per pass, dealt round-robin."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from dpbench.training.result import Indices


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
    """A permutation whose first `missing` indices are not among `before`, of the same step."""
    order = torch.randperm(samples, generator=generator).tolist()
    taken = set(before)
    first = [index for index in order if index not in taken][:missing]
    chosen = set(first)
    return first + [index for index in order if index not in chosen]

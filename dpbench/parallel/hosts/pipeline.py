"""Stages that work on the chunks of a tensor at the same time, each on another chunk."""

from __future__ import annotations

from collections.abc import Callable

from dpbench.parallel.shm.member import Steps

Stage = Callable[[int], Steps[None]]
"""Works on the chunk of this number."""


def staggered(
    chunks: int, *stages: Stage, between: Callable[[], Steps[None]] | None = None
) -> Steps[None]:
    """Run every stage on every chunk; in step t, stage s works on chunk t − s.

    Args:
        chunks: how many; equal on all ranks.
        stages: each called with the numbers of the chunks, in order.
        between: run between two steps, such as a barrier; None for nothing.
    """
    steps = chunks + len(stages) - 1
    for step in range(steps):
        for number, stage in enumerate(stages):
            if 0 <= step - number < chunks:
                yield from stage(step - number)
        if between is not None and step < steps - 1:
            yield from between()


def at_once(work: Callable[[int], None]) -> Stage:
    """A stage that waits for nobody."""

    def stage(number: int) -> Steps[None]:
        work(number)
        yield from ()

    return stage

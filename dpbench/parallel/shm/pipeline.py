"""Large operations: in chunks that stay in cache, with one barrier per chunk."""

from __future__ import annotations

from collections.abc import Callable

from dpbench.parallel.shm.member import Member, Steps


def pipelined(member: Member, chunks: int, *stages: Callable[[int], None]) -> Steps[None]:
    """Run every stage on every chunk; a stage sees what all ranks did in the stage before it.

    In step t, stage s works on chunk t − s. With two buffers in turn, stage s + 1 reads of one
    what stage s wrote in the step before, while stage s writes into the other.

    Args:
        member: this rank, after `meet`.
        chunks: how many; equal on all ranks, as is the number of stages.
        stages: each called with the numbers of the chunks, in order.
    """
    steps = chunks + len(stages) - 1
    for step in range(steps):
        for number, stage in enumerate(stages):
            if 0 <= step - number < chunks:
                stage(step - number)
        if step < steps - 1:
            yield from member.barrier()

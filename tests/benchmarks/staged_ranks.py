"""How the work of one rank grows with the ranks, where shm copies tensors through its staging.

One process drives the steps of one rank of a large group, on memory that it has to itself, without
the others: what is left is the rank's own copying and reducing, and not the waiting.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from time import perf_counter

import torch
import torch.distributed as dist

from dpbench.parallel.shm import memory, reductions
from dpbench.parallel.shm.member import Member, Steps
from dpbench.parallel.shm.memory import Layout
from dpbench.parallel.shm.operators import operator_for
from dpbench.parallel.shm.peers import Peers
from tests.benchmarks.figure import Figure, Ratio, alternating

FEW, MANY = 2, (16, 64)
PROMISED = {16: 2.0}
MEBIBYTES = 32
PAIRS = 15


def run() -> Iterator[Figure]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for ranks in MANY:
            ratio = _ratio(ranks)
            target = PROMISED.get(ranks)
            yield Figure(
                name=f"work per MiB of a staged all-reduce, {ranks} ranks ÷ {FEW}",
                value=str(ratio),
                target="nothing" if target is None else f"at most {target:g}",
                met=target is None or ratio.low <= target,
            )
    finally:
        torch.set_num_threads(threads)


class _Alone(Member):
    """A rank whose peers are always there already."""

    def barrier(self) -> Steps[None]:
        yield from ()


def _ratio(ranks: int) -> Ratio:
    members = _member(ranks), _member(FEW)
    tensor = torch.ones(MEBIBYTES * 2**18)
    for member in members:
        _seconds(member, tensor)  # touches the pages
    gc.collect()
    many, few = (lambda m=member: _seconds(m, tensor) for member in members)
    return Ratio.of(*alternating(many, few, PAIRS))


def _member(ranks: int) -> _Alone:
    """One from the middle of a group."""
    layout = Layout.of(ranks)
    mapping = memory.map_and_close(memory.create(layout.nbytes), layout.nbytes)
    names = [f"rank {rank}" for rank in range(ranks)]
    return _Alone(layout, mapping, ranks // 2, Peers([], 0), names, "shm")


def _seconds(member: Member, tensor: torch.Tensor) -> float:
    start = perf_counter()
    operator = operator_for(dist.ReduceOp.SUM, tensor.dtype)
    for _ in reductions.staged(member, tensor, operator, keep=True):
        pass
    return perf_counter() - start

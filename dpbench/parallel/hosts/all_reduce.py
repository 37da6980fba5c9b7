"""The all-reduce of ranks on several hosts, the collective that training consists of.

The ranks of a host reduce into the memory of their leader, each a share of every chunk. The leader
sends the chunks to the other leaders and gets the results, which all ranks then copy. In each step
of this pipeline, whose stages work on different chunks at the same time, the ranks of a host meet
once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from dpbench.parallel.hosts.carrier import Carrier
from dpbench.parallel.hosts.membership import Hosts
from dpbench.parallel.shm import exchanges, reductions
from dpbench.parallel.shm.arena import Arena
from dpbench.parallel.shm.descriptor import NOWHERE, pack, places
from dpbench.parallel.shm.member import Member, Steps
from dpbench.parallel.shm.memory import SLOT_BYTES
from dpbench.parallel.shm.operators import Operator

CHUNK_BYTES = 2 * 1024 * 1024
"""Long on the wire beside its latency, and short beside a bucket of gradients."""
_STAGES = 6
# What gloo reduces itself, round a ring, as torch would. For the rest it only carries bytes.
_GLOO_DTYPES = (
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16),
    *(torch.int8, torch.uint8, torch.int32, torch.int64),
)
_SUMS = ("SUM", "AVG")

Rows = list[Sequence[Tensor]]
"""The chunks of each rank of the host."""
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


class HostsAllReduce:
    """The all-reduce of one group, as one rank sees it; made of what HostsCollectives is."""

    def __init__(self, hosts: Hosts, member: Member, arena: Arena, leaders: Carrier | None) -> None:
        self._hosts = hosts
        self._member = member
        self._arena = arena
        self._leaders = leaders
        self._staging: Tensor | None = None

    def run(self, tensor: Tensor, operator: Operator) -> Steps[None]:
        """Every rank gets the reduction in place of its operand, which has elements."""
        if tensor.nbytes > SLOT_BYTES:
            yield from self._in_chunks(tensor, operator)
            return
        if self._member.size > 1:
            partial = replace(operator, average=False)
            yield from reductions.reduce(self._member, tensor, partial, 0)
        if self._leaders is not None:
            outside = among_leaders(self._leaders, self._hosts, tensor, operator)
            yield from outside.combine()
            yield from outside.arrival()
        if self._member.size > 1:
            yield from exchanges.broadcast(self._member, tensor, 0)

    def _in_chunks(self, tensor: Tensor, operator: Operator) -> Steps[None]:
        chunks = torch.split(tensor, CHUNK_BYTES // tensor.itemsize)
        shared = yield from self._meet(tensor, chunks, operator)
        rows = shared or (yield from self._staged(chunks))
        partial, me = replace(operator, average=False), self._member.rank
        outside: dict[int, AmongLeaders] = {}

        def contribute(number: int) -> None:
            if shared is None:
                rows[me][number].copy_(chunks[number])

        def reduce_share(number: int) -> None:
            shares = [row[number].tensor_split(len(rows))[me] for row in rows]
            partial.reduce(shares, out=shares[0])

        def send(number: int) -> None:
            if self._leaders is not None:
                mine = rows[0][number]
                outside[number] = among_leaders(self._leaders, self._hosts, mine, operator)

        def combine(number: int) -> Steps[None]:
            if self._leaders is not None:
                yield from outside[number].combine()

        def arrive(number: int) -> Steps[None]:
            if self._leaders is not None:
                yield from outside.pop(number).arrival()

        def collect(number: int) -> None:
            if shared is None or me != 0:
                chunks[number].copy_(rows[0][number])

        stages = (
            at_once(contribute),
            at_once(reduce_share),
            at_once(send),
            combine,
            arrive,
            at_once(collect),
        )
        assert len(stages) == _STAGES
        yield from staggered(len(chunks), *stages, between=self._member.barrier)
        if shared is not None:
            # As soon as the leader leaves, it may write to its tensor.
            yield from self._member.barrier()

    def _meet(
        self, tensor: Tensor, chunks: Sequence[Tensor], operator: Operator
    ) -> Steps[Rows | None]:
        """Begin; returns the operands of all ranks if they lie in shared memory, else None."""
        place = self._arena.place_of(tensor)
        own = pack("all_reduce", tensor.dtype, tensor.numel(), operator=operator.code, place=place)
        met = places((yield from self._member.meet(own)))
        if self._member.size == 1:
            return [chunks]
        if place == NOWHERE or any(other != place for other in met):
            return None
        operands = self._arena.operands(place, tensor)
        return [torch.split(operand, chunks[0].numel()) for operand in operands]

    def _staged(self, chunks: Sequence[Tensor]) -> Steps[Rows]:
        """Room for as many chunks as are under way at once, which they take in turn."""
        if self._staging is None:
            self._staging = yield from self._arena.allocation(_STAGES * CHUNK_BYTES)
        place = self._arena.place_of(self._staging)
        rows: Rows = []
        for staging in self._arena.operands(place, self._staging):
            turns = staging.view(_STAGES, CHUNK_BYTES).unbind()
            rows.append(
                [
                    turns[number % _STAGES][: chunk.nbytes].view(chunk.dtype)
                    for number, chunk in enumerate(chunks)
                ]
            )
        return rows


class AmongLeaders(ABC):
    """One chunk under way."""

    @abstractmethod
    def combine(self) -> Steps[None]:
        """Wait for the operands of the other leaders, if this leader reduces some of them."""

    @abstractmethod
    def arrival(self) -> Steps[None]:
        """Wait for the result."""


def among_leaders(
    leaders: Carrier, hosts: Hosts, tensor: Tensor, operator: Operator
) -> AmongLeaders:
    """Begin to send a chunk.

    Args:
        leaders: reaches them.
        hosts: of the group.
        tensor: what this host's ranks have together, without an average; gets the result.
        operator: the reduction.
    """
    if tensor.dtype in _GLOO_DTYPES and operator.name in _SUMS:
        return _Ring(leaders, hosts, tensor, operator)
    return _Direct(leaders, hosts, tensor, operator)


class _Ring(AmongLeaders):
    """gloo's own sum, which keeps the network busiest."""

    def __init__(self, leaders: Carrier, hosts: Hosts, tensor: Tensor, operator: Operator) -> None:
        self._leaders = leaders
        self._ranks, self._tensor, self._average = hosts.size, tensor, operator.average
        self._crossing = leaders.begin(leaders.gloo.allreduce([tensor]))

    def combine(self) -> Steps[None]:
        yield from ()

    def arrival(self) -> Steps[None]:
        yield from self._leaders.arrival(self._crossing)
        if self._average:
            self._tensor.mul_(1 / self._ranks)


class _Direct(AmongLeaders):
    """Each leader gets a share of all operands, reduces it, and sends the result to all."""

    def __init__(self, leaders: Carrier, hosts: Hosts, tensor: Tensor, operator: Operator) -> None:
        self._leaders = leaders
        self._ranks, self._tensor, self._operator = hosts.size, tensor, operator
        self._counts = [part.numel() for part in tensor.tensor_split(len(hosts.ranks))]
        self._own = [self._counts[hosts.host]] * len(hosts.ranks)
        self._operands = torch.empty(sum(self._own), dtype=tensor.dtype, device="cpu")
        self._crossing = leaders.exchange(tensor, self._counts, self._operands, self._own)

    def combine(self) -> Steps[None]:
        yield from self.arrival()
        operands = self._operands.tensor_split(len(self._own))
        result = torch.empty_like(operands[0])
        self._operator.reduce(operands, out=result, ranks=self._ranks)
        results = result.repeat(len(self._own))
        self._crossing = self._leaders.exchange(results, self._own, self._tensor, self._counts)

    def arrival(self) -> Steps[None]:
        yield from self._leaders.arrival(self._crossing)

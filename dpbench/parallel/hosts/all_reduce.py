"""The all-reduce of ranks on several hosts, the collective that training consists of.

The ranks of a host reduce into the memory of their leader, each a share of every chunk. The leader
sends the chunks to the other leaders and gets the results, which all ranks then copy. In each step
of this pipeline the ranks of a host meet once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from dpbench.parallel.hosts.among_leaders import AmongLeaders, among_leaders
from dpbench.parallel.hosts.carrier import Carrier
from dpbench.parallel.hosts.membership import Hosts
from dpbench.parallel.hosts.pipeline import at_once, staggered
from dpbench.parallel.shm import exchanges, reductions
from dpbench.parallel.shm.arena import Arena
from dpbench.parallel.shm.descriptor import NOWHERE, pack, places
from dpbench.parallel.shm.layout import SLOT_BYTES
from dpbench.parallel.shm.member import Member, Steps
from dpbench.parallel.shm.operators import Operator

CHUNK_BYTES = 2 * 1024 * 1024
"""Long on the wire beside its latency, and short beside a bucket of gradients."""
_STAGES = 6

Rows = list[Sequence[Tensor]]
"""The chunks of each rank of the host."""


class HostsAllReduce:
    """The all-reduce of one group, as one rank sees it."""

    def __init__(self, hosts: Hosts, member: Member, arena: Arena, leaders: Carrier | None) -> None:
        """
        Args:
            hosts: where the ranks are.
            member: this rank's place on its host.
            arena: memory of the ranks of this host.
            leaders: reaches the other leaders; None unless this rank is one.
        """
        self._hosts = hosts
        self._member = member
        self._arena = arena
        self._leaders = leaders
        self._staging: Tensor | None = None

    def run(
        self, tensor: Tensor, operator: Operator, feedback: Tensor | None = None
    ) -> Steps[None]:
        """Every rank gets the reduction in place of its operand, which has elements; a leader's
        `feedback` is that of `among_leaders`."""
        if tensor.nbytes > SLOT_BYTES:
            yield from self._in_chunks(tensor, operator, feedback)
            return
        if self._member.size > 1:
            partial = replace(operator, average=False)
            yield from reductions.reduce(self._member, tensor, partial, 0)
        if self._leaders is not None:
            outside = among_leaders(self._leaders, self._hosts, tensor, operator, feedback)
            yield from outside.combine()
            yield from outside.arrival()
        if self._member.size > 1:
            yield from exchanges.broadcast(self._member, tensor, 0)

    def _in_chunks(
        self, tensor: Tensor, operator: Operator, feedback: Tensor | None
    ) -> Steps[None]:
        chunks = torch.split(tensor, CHUNK_BYTES // tensor.itemsize)
        lost: Sequence[Tensor | None] = [None] * len(chunks)
        if feedback is not None:
            lost = torch.split(feedback, chunks[0].numel())
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
                outside[number] = among_leaders(
                    self._leaders, self._hosts, mine, operator, lost[number]
                )

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

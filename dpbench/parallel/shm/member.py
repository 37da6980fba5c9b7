"""This rank's place in a group: its flags, its buffers, and how ranks meet.

An operation is a generator of steps. It yields whenever it must wait, and yields the flags that
it waits for; whoever runs it decides whether to spin, to block or to do something else meanwhile.
When it ends, no other rank needs this one any more for that operation.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Generator, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from dpbench.parallel.shm import descriptor, memory
from dpbench.parallel.shm.cuda_copies import HostCopy
from dpbench.parallel.shm.layout import DESCRIPTOR_BYTES, SLOT_BYTES, STATE_BYTES, Layout
from dpbench.parallel.shm.peers import Peers
from dpbench.parallel.shm.semaphores import Flag, has_token, post, try_take, wait_for_token

T = TypeVar("T")
Waiting = tuple[Flag, ...] | HostCopy
"""What an operation waits for: all of some flags, one flag of an `AnyOf`, or a copy."""
Steps = Generator[Waiting, None, T]


class AnyOf(tuple[Flag, ...]):
    """Flags one of which will do."""

    __slots__ = ()


class Staging(NamedTuple):
    """Buffers of one dtype that take a chunk each; always two, to be used in turn.

    Attributes:
        of_rank: by rank and turn.
        results: by turn; each rank fills its share.
        numel: of each.
    """

    of_rank: list[list[Tensor]]
    results: list[Tensor]
    numel: int


# Beyond this many sizes of small operands their views are made anew.
_CACHED_VIEWS = 256

_STATE = struct.Struct(f"<i{STATE_BYTES - 4}s")
_LEFT, _GAVE_UP = 1, 2
# Seconds in which a token shows after the state of the rank that posted it, on any machine.
_ON_ITS_WAY = 0.005


class Member:
    """
    Attributes:
        rank, size: in the group.
        names: of the ranks, for messages.
        peers: their processes.
        taken: tokens taken since the start; it grows exactly when an operation gets ahead.
        told: grows when other ranks learn of an operation; one that fails before has not begun.
        broken: why the group cannot be used any more; empty if it can.
        shares: views of its share of chunks, which reductions keep here.
    """

    def __init__(
        self, layout: Layout, mapping: memoryview, rank: int, peers: Peers, names: Sequence[str]
    ) -> None:
        """
        Args:
            layout: of the memory.
            mapping: the memory.
            rank: of this process.
            peers: the processes of the other ranks.
            names: of all ranks.
        """
        self.rank = rank
        self.size = layout.size
        self.names = names
        self.peers = peers
        self.layout = layout
        self.memory = mapping
        self.bytes = memory.as_tensor(mapping)
        self.taken = 0
        self.told = 0
        self.broken = ""
        self.shares: dict[tuple[torch.dtype, int, int], Any] = {}
        self._turn = 0
        self._pid = os.getpid()
        self._others = [peer for peer in range(self.size) if peer != rank]
        start = self.bytes.data_ptr()
        self._posted = [
            Flag(start + layout.collective_flag(rank, peer), peer).address for peer in self._others
        ]
        self._awaited = tuple(
            Flag(start + layout.collective_flag(peer, rank), peer) for peer in self._others
        )
        starts = [[layout.slot_of(peer, turn) for peer in range(self.size)] for turn in (0, 1)]
        self._descriptors = [
            [mapping[start : start + DESCRIPTOR_BYTES] for start in slots] for slots in starts
        ]
        self._operands: dict[tuple[torch.dtype, int, int], list[Tensor]] = {}
        self._staging: dict[torch.dtype, Staging] = {}

    def flag(self, offset: int, peer: int) -> Flag:
        """The semaphore at an offset of the layout."""
        return Flag(self.bytes.data_ptr() + offset, peer)

    def take(self, flag: Flag) -> Steps[None]:
        """Take a token of one flag."""
        while try_take(flag.address):
            yield (flag,)
        self.taken += 1

    def barrier(self) -> Steps[None]:
        """Pass when all ranks have come here; what they wrote before is then visible."""
        self.told += 1
        for address in self._posted:
            post(address)
        for position, flag in enumerate(self._awaited):
            while try_take(flag.address):
                yield self._awaited[position:]
            self.taken += 1

    def meet(self, own: bytes) -> Steps[list[bytes]]:
        """Start a collective: a barrier at which the ranks tell each other what they are at.

        When it passes, all ranks have ended their previous collective: the staging buffers are
        free, and so will be the other slot.

        Args:
            own: a descriptor.

        Returns:
            The descriptors of all ranks.

        Raises:
            Mismatch: they do not agree; on every rank.
        """
        turn, self._turn = self._turn, 1 - self._turn
        views = self._descriptors[turn]
        views[self.rank][:] = own
        yield from self.barrier()
        descriptors = [bytes(view) for view in views]
        if descriptors.count(own) != self.size:
            descriptor.require_agreement(descriptors, self.names)
        return descriptors

    def operands(self, dtype: torch.dtype, numel: int) -> list[Tensor]:
        """Of each rank, the place for a small operand, at most SLOT_BYTES.

        Fill one's own before `meet`, read the others' after it.
        """
        key = (dtype, numel, self._turn)
        views = self._operands.get(key)
        if views is None:
            if len(self._operands) == _CACHED_VIEWS:
                self._operands.clear()
            places = [self.layout.operand_of(rank, self._turn) for rank in range(self.size)]
            views = [self.bytes[at : at + SLOT_BYTES].view(dtype)[:numel] for at in places]
            self._operands[key] = views
        return views

    def staging(self, dtype: torch.dtype) -> Staging:
        """The buffers for large operations, free from `meet` on."""
        staging = self._staging.get(dtype)
        if staging is None:
            nbytes = self.layout.chunk_bytes
            buffers = [
                [
                    self.bytes[start : start + nbytes].view(dtype)
                    for start in (self.layout.staging_of(rank, turn) for turn in (0, 1))
                ]
                for rank in range(self.size + 1)
            ]
            staging = Staging(buffers[:-1], buffers[-1], nbytes // dtype.itemsize)
            self._staging[dtype] = staging
        return staging

    def leave(self, reason: str = "") -> None:
        """Tell the others that this rank takes part in nothing more, and why; once.

        Args:
            reason: of giving up; empty for leaving in good order.
        """
        if self._state(self.rank)[0]:
            return
        text = reason.encode()[: _STATE.size - 5]
        offset = self.layout.state_of(self.rank)
        self.memory[offset : offset + _STATE.size] = _STATE.pack(_GAVE_UP if text else _LEFT, text)

    def close(self) -> None:
        """Leave in good order and forget the others; a forked child does neither."""
        if os.getpid() == self._pid:
            self.leave()
            self.peers.close()

    def absence(self, waiting: Waiting) -> str:
        """Why an operation that waits for these flags waits in vain; empty if it may not."""
        if isinstance(waiting, HostCopy):
            return ""
        ended = self.peers.ended()
        reasons = []
        for flag in waiting:
            reason = self._why_absent(flag.peer, ended)
            # What it posted last may still be on its way; a token that is there is good.
            if reason and not has_token(flag):
                wait_for_token(flag, _ON_ITS_WAY)
            if reason and not has_token(flag):
                reasons.append(f"{self._tell(flag.peer)} {reason}")
        if isinstance(waiting, AnyOf) and len(reasons) < len(waiting):
            return ""
        return "; ".join(reasons)

    def late(self, waiting: Waiting) -> list[int]:
        """The ranks of those awaited that have not come; this rank, if it waits for a copy."""
        if isinstance(waiting, HostCopy):
            return [self.rank]
        late = [flag.peer for flag in waiting if not has_token(flag)]
        return [] if isinstance(waiting, AnyOf) and len(late) < len(waiting) else late

    def describe(self, ranks: Sequence[int]) -> str:
        """Names ranks that are late, with the reason where it can be seen."""
        ended = self.peers.ended()
        return ", ".join(self._tell(rank) + self._why_late(rank, ended) for rank in ranks)

    def _why_late(self, rank: int, ended: set[int]) -> str:
        if rank == self.rank:
            return ", whose copy from its GPU has not arrived"
        reason = self._why_absent(rank, ended)
        if not reason and self.peers.is_stopped(rank):
            reason = "is stopped"
        return f", which {reason}" if reason else ""

    def _tell(self, peer: int) -> str:
        return f"{self.names[peer]} (pid {self.peers.pids[peer]})"

    def _why_absent(self, peer: int, ended: set[int]) -> str:
        state, text = self._state(peer)
        if state == _GAVE_UP:
            return "gave up: " + text
        if peer in ended:
            return "has ended"
        return "has left the group" if state == _LEFT else ""

    def _state(self, rank: int) -> tuple[int, str]:
        offset = self.layout.state_of(rank)
        state, text = _STATE.unpack(self.memory[offset : offset + _STATE.size])
        return state, text.rstrip(b"\0").decode(errors="replace")

"""This rank's place in a group: its flags, its buffers, and how ranks meet.

An operation is a generator of steps. Whenever it must wait, it yields the flags that it waits for;
its driver decides whether to spin, block or do something else meanwhile. When it ends, no other
rank needs this one for that operation any more.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Generator, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from dpbench.parallel.shm import descriptor, memory
from dpbench.parallel.shm.memory import DESCRIPTOR_BYTES, SLOT_BYTES, STATE_BYTES, Layout
from dpbench.parallel.shm.peers import Peers
from dpbench.parallel.shm.semaphores import SharedFlag, has_token, post, try_take, wait_for_token

T = TypeVar("T")


class Arrival(Protocol):
    """Something to wait for that is no flag: a copy from a GPU, or data from another host."""

    excuse: str
    """Why a rank that waits for it is late, for messages."""

    @property
    def has_arrived(self) -> bool: ...

    def wait(self, seconds: float) -> None:
        """Return when it may have arrived, or after about `seconds`."""


Waiting = tuple[SharedFlag, ...] | Arrival
"""An operation waits for all of some flags, or for an arrival."""
Steps = Generator[Waiting, None, T]


class Staging(NamedTuple):
    """Buffers of one dtype for one chunk each; there are always two, used in turn.

    Attributes:
        of_rank: the operands' buffers, by rank and turn.
        results: the result buffers by turn; each rank fills its share.
        numel: number of elements in each buffer.
    """

    of_rank: list[list[Tensor]]
    results: list[Tensor]
    numel: int


# Number of sizes of small operands whose views are cached.
_CACHED_VIEWS = 256

_STATE = struct.Struct(f"<i{STATE_BYTES - 4}s")
_LEFT, _GAVE_UP = 1, 2
# Upper limit, in seconds, until a token is visible after the state of the rank that posted it.
_ON_ITS_WAY = 0.005


class Member:
    """
    Attributes:
        rank, size: in the group.
        names: names of the ranks, for messages.
        backend: name of the group's backend, for messages.
        peers: processes of the ranks.
        taken: number of tokens taken so far; it grows exactly when an operation advances.
        told: grows when other ranks learn of an operation; an operation that fails before that has
            not begun.
        broken: why the group cannot be used any more; empty if it can.
        shares: views of this rank's shares of chunks, which reductions cache here.
    """

    def __init__(
        self,
        layout: Layout,
        mapping: memoryview,
        rank: int,
        peers: Peers,
        names: Sequence[str],
        backend: str,
    ) -> None:
        self.rank = rank
        self.size = layout.size
        self.names = names
        self.backend = backend
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
            SharedFlag(start + layout.collective_flag(rank, peer), peer).address
            for peer in self._others
        ]
        self._awaited = tuple(
            SharedFlag(start + layout.collective_flag(peer, rank), peer) for peer in self._others
        )
        starts = [[layout.slot_of(peer, turn) for peer in range(self.size)] for turn in (0, 1)]
        self._descriptors = [
            [mapping[start : start + DESCRIPTOR_BYTES] for start in slots] for slots in starts
        ]
        self._operands: dict[tuple[torch.dtype, int, int], list[Tensor]] = {}
        self._staging: dict[torch.dtype, Staging] = {}

    def barrier(self) -> Steps[None]:
        """Pass when all ranks have arrived; what they wrote before is then visible."""
        self.told += 1
        for address in self._posted:
            post(address)
        for position, flag in enumerate(self._awaited):
            while try_take(flag.address):
                yield self._awaited[position:]
            self.taken += 1

    def meet(self, own: bytes) -> Steps[list[bytes]]:
        """Start a collective: a barrier at which the ranks exchange descriptors of their
        operations.

        When it passes, all ranks have ended their previous collective: the staging buffers are
        free, and so will be the other slot.

        Args:
            own: this rank's descriptor.

        Returns:
            The descriptors of all ranks.

        Raises:
            Mismatch: on every rank: the descriptors do not agree.
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
        """The memory for small operands, at most SLOT_BYTES, one tensor per rank.

        Fill this rank's before `meet`, and read the others' after it.
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
        """Tell the others, once, that this rank takes part in nothing more, and why.

        Args:
            reason: the reason for giving up; empty for an orderly exit.
        """
        if self._state(self.rank)[0]:
            return
        text = reason.encode()[: _STATE.size - 5]
        offset = self.layout.state_of(self.rank)
        self.memory[offset : offset + _STATE.size] = _STATE.pack(_GAVE_UP if text else _LEFT, text)

    def close(self) -> None:
        """Leave in an orderly way and forget the others; a forked child does neither."""
        if os.getpid() == self._pid:
            self.leave()
            self.peers.close()

    def absence(self, waiting: Waiting) -> str:
        """Why an operation waits in vain for these flags; empty if it does not."""
        if not isinstance(waiting, tuple):
            return ""
        ended = self.peers.ended()
        reasons = []
        for flag in waiting:
            reason = self._why_absent(flag.peer, ended)
            # The rank's last token may not be visible yet; a token that is there counts.
            if reason and not has_token(flag):
                wait_for_token(flag, _ON_ITS_WAY)
            if reason and not has_token(flag):
                reasons.append(f"{self._tell(flag.peer)} {reason}")
        return "; ".join(reasons)

    def late(self, waiting: Waiting) -> list[int]:
        """The awaited ranks that have not come; this rank, if it waits for an arrival."""
        if not isinstance(waiting, tuple):
            return [self.rank]
        return [flag.peer for flag in waiting if not has_token(flag)]

    def describe(self, late: Sequence[int], waiting: Waiting) -> str:
        """Names of the late ranks, each with the reason if it can be seen."""
        if not isinstance(waiting, tuple):
            return f"{self._tell(self.rank)}, {waiting.excuse}"
        ended = self.peers.ended()
        return ", ".join(self._tell(rank) + self._why_late(rank, ended) for rank in late)

    def _why_late(self, rank: int, ended: set[int]) -> str:
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

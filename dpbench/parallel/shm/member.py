"""This rank's place in a group: its semaphores, its buffers, and how ranks meet."""

from __future__ import annotations

import ctypes
import os
import struct
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dpbench.parallel.shm import memory
from dpbench.parallel.shm.memory import DESCRIPTOR_BYTES, SLOT_BYTES, STATE_BYTES, Layout
from dpbench.parallel.shm.peers import Peers
from dpbench.parallel.shm.semaphores import has_token, post, take_within, try_take

SPINS = 160
"""Tries before a thread blocks: some tens of microseconds."""
YIELD_EVERY = 8
FIRST_LOOK, LAST_LOOK = 0.001, 0.05
"""Seconds blocked before the other ranks and the clock are checked; they double each time."""
# Upper limit, in seconds, until a token is visible after the state of the rank that posted it.
_TOKEN_DELAY = 0.005
# Number of sizes of small operands, and of chunks, whose views are cached.
_CACHED_VIEWS = 256

_STATE = struct.Struct(f"<i{STATE_BYTES - 4}s")
_LEFT, _GAVE_UP = 1, 2
# The place of the operand, and the operation as text.
_DESCRIPTOR = struct.Struct(f"<qq{DESCRIPTOR_BYTES - 16}s")
Place = tuple[int, int]
"""An operand's place in the memory that the group has allocated: the block, and its offset."""
NOWHERE: Place = (-1, -1)


class Mismatch(dist.DistBackendError):
    """The ranks called different operations. No data has moved; the group can still be used."""


def describe(kind: str, tensor: Tensor, operator: str = "", root: int = -1) -> str:
    """A collective as text, as in "all_reduce(SUM, 12 × torch.float32)"; -1 means no root."""
    details = [operator] if operator else []
    details.append(f"{tensor.numel()} × {tensor.dtype}")
    if root >= 0:
        details.append(f"root {root}")
    return f"{kind}({', '.join(details)})"


Staging = tuple[list[list[Tensor]], list[Tensor], int]
"""Buffers for one chunk each: the operands' by rank and turn, those of results by turn, of which
each rank fills its share, and the number of elements in each."""


class Member:
    """One rank of a group; only one thread at a time may run operations on it.

    Attributes:
        rank, size: in the group.
        names: names of the ranks, for messages.
        peers: processes of the ranks.
        broken: why the group cannot be used any more; empty if it can.
        barriers: grows when other ranks hear of an operation; one that fails before has not begun.
        views: views of the buffers, which collectives cache here.
    """

    def __init__(
        self, layout: Layout, mapping: Any, rank: int, peers: Peers, names: Sequence[str]
    ) -> None:
        """
        Args:
            layout: of the group's memory.
            mapping: the group's memory, with its semaphores initialised.
            rank, peers, names: see the attributes.
        """
        self.rank = rank
        self.size = layout.size
        self.names = names
        self.peers = peers
        self.broken = ""
        self.barriers = 0
        self.views: dict[Any, Any] = {}
        self._layout = layout
        self._memory = memoryview(mapping).cast("B")
        self._bytes = memory.as_bytes(mapping)
        self._turn = 0
        self._operation, self._timeout, self._deadline = "", 0.0, 0.0
        self._spins = SPINS
        self._pid = os.getpid()
        start = self._bytes.data_ptr()
        others = [peer for peer in range(self.size) if peer != rank]
        self._posted = [ctypes.c_void_p(start + layout.semaphore(rank, peer)) for peer in others]
        self._awaited = [
            (ctypes.c_void_p(start + layout.semaphore(peer, rank)), peer) for peer in others
        ]
        self._descriptors = [
            [
                self._memory[offset : offset + DESCRIPTOR_BYTES]
                for offset in (layout.descriptor_of(peer, turn) for peer in range(self.size))
            ]
            for turn in (0, 1)
        ]

    def begin(self, operation: str, timeout: float, *, spin: bool) -> None:
        """Prepare for an operation.

        Args:
            operation: its name, for messages.
            timeout: seconds that it may wait, from when a wait first blocks.
            spin: whether to spin before a wait blocks: faster, where no other thread of this
                process computes meanwhile.
        """
        self._operation, self._timeout, self._deadline = operation, timeout, 0.0
        self._spins = SPINS if spin else 1

    def barrier(self) -> None:
        """Pass when all ranks have arrived; what they wrote before is then visible.

        Raises:
            torch.distributed.DistBackendError: a rank is missing: it is gone, or late.
        """
        self.barriers += 1
        for semaphore in self._posted:
            post(semaphore)
        for position, (semaphore, _) in enumerate(self._awaited):
            if try_take(semaphore):
                self._take(position)

    def meet(self, operation: str, place: Place = NOWHERE) -> bool:
        """Start a collective: a barrier at which the ranks compare their operations.

        When it passes, all ranks have ended their previous collective: the staging buffers are
        free, and so is the other slot, which the next collective uses.

        Args:
            operation: as from `describe`.
            place: of the operand.

        Returns:
            Whether the place is the same on all ranks.

        Raises:
            Mismatch: on every rank: the operations differ.
            torch.distributed.DistBackendError: see `barrier`.
        """
        turn, self._turn = self._turn, 1 - self._turn
        views = self._descriptors[turn]
        own = _DESCRIPTOR.pack(*place, operation.encode())
        views[self.rank][:] = own
        self.barrier()
        descriptors = [bytes(view) for view in views]
        if descriptors.count(own) == self.size:
            return True
        texts = [_DESCRIPTOR.unpack(each)[2].rstrip(b"\0").decode() for each in descriptors]
        for name, text in zip(self.names, texts, strict=True):
            if text != texts[0]:
                raise Mismatch(
                    f"ranks disagree: {self.names[0]} called {texts[0]}, but {name} called {text}"
                )
        return False

    def operands(self, dtype: torch.dtype, numel: int) -> list[Tensor]:
        """The memory for small operands, at most SLOT_BYTES, one tensor per rank.

        Fill this rank's before `meet`, and read the others' after it.
        """
        key = (dtype, numel, self._turn)
        views: list[Tensor] | None = self.views.get(key)
        if views is None:
            offsets = [self._layout.operand_of(rank, self._turn) for rank in range(self.size)]
            views = [self._bytes[at : at + SLOT_BYTES].view(dtype)[:numel] for at in offsets]
            self.cache(key, views)
        return views

    def staging(self, dtype: torch.dtype) -> Staging:
        """The buffers for large operations, free from `meet` on."""
        staging: Staging | None = self.views.get(dtype)
        if staging is None:
            nbytes = self._layout.chunk_bytes
            buffers = [
                [
                    self._bytes[start : start + nbytes].view(dtype)
                    for start in (self._layout.staging_of(rank, turn) for turn in (0, 1))
                ]
                for rank in range(self.size + 1)
            ]
            staging = buffers[:-1], buffers[-1], nbytes // dtype.itemsize
            self.cache(dtype, staging)
        return staging

    def cache(self, key: Any, views: Any) -> None:
        """Keep views of the buffers, as every training step makes the same ones."""
        if len(self.views) == _CACHED_VIEWS:
            self.views.clear()
        self.views[key] = views

    def give_up(self, error: BaseException) -> None:
        """Mark the group as broken by an error, and tell the other ranks."""
        if not self.broken:
            self.broken = (
                str(error) or f"{self._operation} was interrupted by {type(error).__name__}"
            )
            self._leave(_GAVE_UP, self.broken)

    @property
    def is_own_process(self) -> bool:
        """Whether this is the process that made the group, and none forked from it."""
        return os.getpid() == self._pid

    def require_usable(self) -> None:
        """
        Raises:
            RuntimeError: the group belongs to another process, or is broken.
        """
        if not self.is_own_process:
            raise RuntimeError(
                f"this 'shm' group belongs to process {self._pid}; process {os.getpid()}, forked "
                "from it, must make a group of its own"
            )
        if self.broken:
            raise dist.DistBackendError(f"this 'shm' group can no longer be used: {self.broken}")

    def close(self) -> None:
        """Leave in an orderly way and forget the others; a forked child does neither."""
        if self.is_own_process:
            self._leave(_LEFT)
            self.peers.close()

    def _take(self, position: int) -> None:
        """Take the token of an awaited rank, which has not come yet."""
        semaphore, _ = self._awaited[position]
        for number in range(1, self._spins):
            if not try_take(semaphore):
                return
            if number % YIELD_EVERY == 0:
                os.sched_yield()
        self._deadline = self._deadline or time.monotonic() + self._timeout
        look = FIRST_LOOK
        while not take_within(semaphore, min(look, max(self._deadline - time.monotonic(), 0))):
            if self.broken:
                raise dist.DistBackendError(f"{self._operation} was aborted: {self.broken}")
            self._require_present(self._awaited[position:])
            look = min(2 * look, LAST_LOOK)

    def _require_present(self, awaited: Sequence[tuple[ctypes.c_void_p, int]]) -> None:
        """
        Raises:
            torch.distributed.DistBackendError: the deadline has passed, or an awaited rank is gone.
        """
        ended = self.peers.ended()
        is_late = time.monotonic() >= self._deadline
        reasons = {peer: self._why_absent(peer, ended) for _, peer in awaited}
        if not is_late and not any(reasons.values()):
            return
        # The last token of a rank may not be visible yet, though its end is.
        time.sleep(_TOKEN_DELAY)
        who = ", ".join(
            f"{self.names[peer]} (pid {self.peers.pids[peer]})"
            + (f", which {reasons[peer]}" if reasons[peer] else "")
            for semaphore, peer in awaited
            if not has_token(semaphore) and (is_late or reasons[peer])
        )
        if who and is_late:
            # In the words of torch's backends, which scripts look for.
            limit = f"{self._timeout * 1000:.0f}ms"
            raise dist.DistBackendError(f"{self._operation}: Timed out waiting {limit} for {who}")
        if who:
            raise dist.DistBackendError(f"{self._operation} cannot complete: {who}")

    def _why_absent(self, peer: int, ended: set[int]) -> str:
        state, text = self._state(peer)
        if state == _GAVE_UP:
            return "gave up: " + text
        if peer in ended:
            return "has ended"
        return "has left the group" if state == _LEFT else ""

    def _leave(self, state: int, reason: str = "") -> None:
        """Tell the others, once, that this rank takes part in nothing more, and why."""
        if not self._state(self.rank)[0]:
            offset = self._layout.state_of(self.rank)
            text = reason.encode()[: _STATE.size - 5]
            self._memory[offset : offset + _STATE.size] = _STATE.pack(state, text)

    def _state(self, rank: int) -> tuple[int, str]:
        offset = self._layout.state_of(rank)
        state, text = _STATE.unpack(self._memory[offset : offset + _STATE.size])
        return state, text.rstrip(b"\0").decode(errors="replace")


def pipelined(member: Member, chunks: int, *stages: Callable[[int], None]) -> None:
    """Run every stage on every chunk; a stage sees what all ranks did in the stage before it.

    In step t, stage s works on chunk t − s. With two alternating buffers, stage s + 1 reads from
    one what stage s wrote in the step before, while stage s writes to the other.

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
            member.barrier()

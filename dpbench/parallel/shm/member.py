"""This rank in its group: its semaphores, its memory, and how it waits for the other ranks.

`sem_post` releases and `sem_wait` acquires (POSIX.1-2017, 4.12 Memory Synchronization): what a rank
wrote before it posted is visible to the rank that took the token, on Arm as well as on x86. No
other fence is needed.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import time
import weakref
from collections.abc import Sequence
from functools import cache, lru_cache, partial

import psutil
import torch
import torch.distributed as dist
from torch import Tensor

from dpbench.parallel.groups import PeerFailed
from dpbench.parallel.shm.memory import (
    HEADER_BYTES,
    SLOT_BYTES,
    Allocation,
    Layout,
    as_bytes,
    pages,
)

SPINS = 160
"""Tries before a thread blocks: some tens of microseconds."""
YIELD_EVERY = 8
LOOK_EVERY = 0.1
"""Seconds blocked between two looks at the other ranks and the clock. A look takes 0.1 ms or more
for each rank, which holds up a wait that is about to end."""
# Upper limit, in seconds, until a token is visible after the state of the rank that posted it.
_TOKEN_DELAY = 0.005
# Number of sizes of small operands whose views are cached.
_CACHED_VIEWS = 256

# The offset of the operand, and the operation as text.
_HEADER = struct.Struct(f"<q{HEADER_BYTES - 8}s")
_OUTSIDE = -1  # the offset of a tensor outside the memory that the group has allocated

# Posting and trying are faster than releasing the interpreter lock, so PyDLL keeps it. Blocking
# must release it, as CDLL does.
_quick, _blocking = ctypes.PyDLL(None), ctypes.CDLL(None)
_post, _try_wait = _quick.sem_post, _quick.sem_trywait


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class ShmMember:
    """This rank in a group; only one thread at a time may run operations on it.

    Attributes:
        rank, size: in the group.
        layout, descriptor: of the group's memory.
        names: names of the ranks, for messages.
        broken: why the group cannot be used any more; empty if it can.
        staging_buffers: from a dtype to the buffers for large tensors, which are free after
            `enter_collective`.
    """

    def __init__(
        self, layout: Layout, descriptor: int, rank: int, pids: Sequence[int], names: Sequence[str]
    ) -> None:
        """`pids` are the process ids of the ranks; `close` closes the descriptor.

        Raises:
            OSError: the process has no address space left.
            psutil.NoSuchProcess: a rank has ended.
        """
        self.rank, self.size = rank, layout.size
        self.layout, self.descriptor, self.names = layout, descriptor, names
        self.broken = ""
        self._processes = [psutil.Process(pid) for pid in pids]
        mapping = mmap.mmap(descriptor, layout.nbytes)
        self._memory = memoryview(mapping)
        shared = as_bytes(mapping)
        # Every training step asks for the same ones.
        self._slots = lru_cache(_CACHED_VIEWS)(partial(_slots, layout, shared))
        self.staging_buffers = cache(partial(_staging_buffers, layout, shared))
        self._turn = 0
        self._end = layout.nbytes
        # Those that still have a tensor on this rank, by the address at which its part starts,
        # which is that of the tensor's storage.
        self._allocations: dict[int, Allocation] = {}
        self._operation, self._timeout, self._deadline = "", 0.0, 0.0
        self._spins = SPINS
        self._pid = os.getpid()
        start = shared.data_ptr()
        ranks = range(self.size)
        peers = [peer for peer in ranks if peer != rank]
        self._posted = [ctypes.c_void_p(start + layout.semaphore(rank, peer)) for peer in peers]
        self._awaited = [
            (ctypes.c_void_p(start + layout.semaphore(peer, rank)), peer) for peer in peers
        ]
        self._headers = [
            [self._memory[layout.header_of(peer, turn) :][:HEADER_BYTES] for peer in ranks]
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
        for semaphore in self._posted:
            _post(semaphore)
        for position, (semaphore, _) in enumerate(self._awaited):
            if _try_wait(semaphore):
                self._wait_for(position)

    def enter_collective(self, operation: str, tensor: Tensor | None = None) -> Allocation | None:
        """Enter a collective: a barrier at which the ranks compare their operations.

        When it passes, all ranks have ended their previous collective: the staging buffers are
        free, and so is the other slot, which the next collective uses.

        Args:
            operation: as text, such as "barrier()".
            tensor: contiguous; the ranks compare where theirs lie in the memory of the group, too.

        Returns:
            The allocation in which the tensors of all ranks lie at one offset; None without it.

        Raises:
            torch.distributed.DistBackendError: on every rank: the operations differ; see also
                `barrier`.
        """
        allocation, offset = None, _OUTSIDE
        if tensor is not None:
            start = tensor.untyped_storage().data_ptr()
            if (allocation := self._allocations.get(start)) is not None:
                offset = allocation.offset + tensor.data_ptr() - start
        turn, self._turn = self._turn, 1 - self._turn
        views = self._headers[turn]
        header = _HEADER.pack(offset, operation.encode())
        views[self.rank][:] = header
        self.barrier()
        headers = [bytes(view) for view in views]
        if headers.count(header) == self.size:
            return allocation
        texts = [_HEADER.unpack(packed)[1].rstrip(b"\0").decode() for packed in headers]
        for name, text in zip(self.names, texts, strict=True):
            if text != texts[0]:
                raise dist.DistBackendError(
                    f"ranks disagree: {self.names[0]} called {texts[0]}, but {name} called {text}"
                )
        return None

    def slots(self, dtype: torch.dtype, numel: int) -> list[Tensor]:
        """The memory for operands of at most SLOT_BYTES, one tensor per rank.

        Fill this rank's before `enter_collective`, and read the others' after it.
        """
        return self._slots(dtype, numel, self._turn)

    def allocate(self, nbytes: int) -> Tensor:
        """Allocate a part of `nbytes`, 1 or more, for each rank; a collective.

        Returns:
            This rank's part: uint8, `(nbytes,)`, zeroed, on a page boundary.

        Raises:
            OSError: this process cannot have so much memory.
        """
        stride, offset = pages(nbytes), self._end
        end = offset + stride * self.size
        os.ftruncate(self.descriptor, end)
        mapping = mmap.mmap(self.descriptor, end - offset, offset=offset)
        self.enter_collective(f"allocate({nbytes} bytes)")
        self._end = end
        allocation = Allocation(mapping, offset, stride, self.rank)
        self._allocations[allocation.address] = allocation
        # Its buffer keeps nothing but the mapping alive; the entry goes with it.
        begin = self.rank * stride
        part = memoryview(mapping)[begin:][:nbytes]
        free = weakref.finalize(part, self._free, allocation.address, mapping, begin, stride)
        free.atexit = False  # the kernel frees everything
        return torch.frombuffer(part, dtype=torch.uint8)

    def _free(self, start: int, mapping: mmap.mmap, offset: int, stride: int) -> None:
        """Forget an allocation, and free this rank's pages of it; a forked child keeps them."""
        del self._allocations[start]
        if self.is_own_process:
            mapping.madvise(mmap.MADV_REMOVE, offset, stride)

    def abort(self, error: BaseException) -> None:
        """Mark the group as broken by an error, and leave it; a forked child does nothing."""
        if self.is_own_process and not self.broken:
            interrupted = f"{self._operation} was interrupted by {type(error).__name__}"
            self.broken = str(error) or interrupted
            self._memory[self.rank] = True  # it has left

    @property
    def is_own_process(self) -> bool:
        """Whether this is the process that made the group, and none forked from it."""
        return os.getpid() == self._pid

    def require_usable(self) -> None:
        """Raise RuntimeError if the group belongs to another process or is broken."""
        if not self.is_own_process:
            raise RuntimeError(
                f"this 'shm' group belongs to process {self._pid}; process {os.getpid()}, forked "
                "from it, must make a group of its own"
            )
        if self.broken:
            raise PeerFailed(f"this 'shm' group can no longer be used: {self.broken}")

    def close(self) -> None:
        """Leave the group; a forked child does nothing."""
        if self.is_own_process and self.descriptor >= 0:
            self._memory[self.rank] = True  # it has left
            os.close(self.descriptor)
            self.descriptor = -1

    def _wait_for(self, position: int) -> None:
        """Wait for the token of an awaited rank, which has not come yet."""
        semaphore, _ = self._awaited[position]
        for number in range(1, self._spins):
            if not _try_wait(semaphore):
                return
            if number % YIELD_EVERY == 0:
                os.sched_yield()
        self._deadline = self._deadline or time.monotonic() + self._timeout
        while True:
            # sem_timedwait takes the system's clock, whose changes lengthen or shorten one turn.
            until = time.time() + min(LOOK_EVERY, self._deadline - time.monotonic())
            timespec = _Timespec(int(until), int(until % 1 * 1e9))
            if not _blocking.sem_timedwait(semaphore, ctypes.byref(timespec)):
                return
            if self.broken:
                raise dist.DistBackendError(f"{self._operation} was aborted: {self.broken}")
            self._require_present(self._awaited[position:])

    def _require_present(self, awaited: Sequence[tuple[ctypes.c_void_p, int]]) -> None:
        """Raise DistBackendError if the deadline has passed or an awaited rank is gone."""
        is_late = time.monotonic() >= self._deadline
        reasons = {peer: self._why_absent(peer) for _, peer in awaited}
        if not is_late and not any(reasons.values()):
            return
        # The last token of a rank may not be visible yet, though its end is.
        time.sleep(_TOKEN_DELAY)
        missing = []
        for semaphore, peer in awaited:
            tokens = ctypes.c_int()
            _quick.sem_getvalue(semaphore, ctypes.byref(tokens))
            if not tokens.value and (is_late or reasons[peer]):
                pid = self._processes[peer].pid
                missing.append(f"{self.names[peer]} (pid {pid}{reasons[peer]})")
        who = ", ".join(missing)
        if who and is_late:
            # In the words of torch's backends, which scripts look for.
            limit = f"{self._timeout * 1000:.0f}ms"
            raise dist.DistBackendError(f"{self._operation}: Timed out waiting {limit} for {who}")
        if who:
            raise PeerFailed(f"{self._operation} cannot complete: {who}")

    def _why_absent(self, peer: int) -> str:
        if self._memory[peer]:
            return ", has left the group"
        process = self._processes[peer]
        try:
            # psutil counts a zombie, whose parent has not waited for it yet, as running.
            runs = process.is_running() and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            runs = False
        return "" if runs else ", has ended"


def _slots(
    layout: Layout, shared: Tensor, dtype: torch.dtype, numel: int, turn: int
) -> list[Tensor]:
    offsets = [layout.operand_of(rank, turn) for rank in range(layout.size)]
    return [shared[at : at + SLOT_BYTES].view(dtype)[:numel] for at in offsets]


def _staging_buffers(
    layout: Layout, shared: Tensor, dtype: torch.dtype
) -> tuple[list[list[Tensor]], list[Tensor], int]:
    """See `ShmMember.staging_buffers`."""
    nbytes, at = layout.chunk_bytes, layout.buffer_of
    by_rank = [
        [shared[at(rank, turn) :][:nbytes].view(dtype) for turn in (0, 1)]
        for rank in range(layout.size + 1)
    ]
    return by_rank[:-1], by_rank[-1], nbytes // dtype.itemsize

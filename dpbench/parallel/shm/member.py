"""This rank in its group: how it waits for the other ranks, and finds out that one is gone.

`sem_post` releases and `sem_wait` acquires (POSIX.1-2017, 4.12 Memory Synchronization): what a rank
wrote before it posted is visible to the rank that took the token, on Arm as well as on x86. No
other fence is needed.
"""

from __future__ import annotations

import ctypes
import os
import struct
import time
from collections.abc import Sequence

import psutil
import torch
import torch.distributed as dist
from torch import Tensor

from dpbench.parallel.groups import PeerFailed
from dpbench.parallel.shm.memory import HEADER_BYTES, GroupMemory, Pieces

SPINS = 160
"""Tries before a thread blocks: some tens of microseconds."""
YIELD_EVERY = 8
LOOK_EVERY = 0.1
"""Seconds blocked between two looks at the other ranks and the clock. A look takes 0.1 ms or more
for each rank, which holds up a wait that is about to end."""
# Upper limit, in seconds, until a token is visible after the state of the rank that posted it.
_TOKEN_DELAY = 0.005

# The offset of the operand, and the operation as text.
_HEADER = struct.Struct(f"<q{HEADER_BYTES - 8}s")

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
        memory: the memory of the group.
        broken: why the group cannot be used any more; empty if it can.
    """

    def __init__(self, memory: GroupMemory, pids: Sequence[int], names: Sequence[str]) -> None:
        """Make the semaphores that this rank takes.

        Args:
            memory: the memory of the group, as this rank maps it.
            pids: process ids of all ranks.
            names: names of all ranks, for messages.

        Raises:
            OSError: the system has no semaphores between processes.
            psutil.NoSuchProcess: a rank has ended.
        """
        self.rank, self.size, self.memory, self.broken = memory.rank, memory.size, memory, ""
        self._names, self._pid = names, pids[memory.rank]
        self._processes = list(map(psutil.Process, pids))
        # Semaphores by other rank: where it waits for this one, and where this one waits for it.
        self._peers = [peer for peer in range(self.size) if peer != self.rank]
        self._posted = [memory.semaphore(self.rank, peer) for peer in self._peers]
        self._awaited = [memory.semaphore(peer, self.rank) for peer in self._peers]
        for semaphore in self._awaited:
            if _quick.sem_init(semaphore, 1, 0):
                raise OSError("sem_init failed: this system has no semaphores between processes")
        self._turn = 0
        self.begin("", 0.0, spin=True)

    def begin(self, operation: str, timeout: float, *, spin: bool) -> None:
        """Prepare for an operation.

        Args:
            operation: as text, such as "broadcast(12 × torch.float32, root 0)"; the ranks compare
                it when they enter, and messages name it.
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
        for number, semaphore in enumerate(self._awaited):
            if _try_wait(semaphore):
                self._wait_for(number)

    def enter(self, tensor: Tensor | None = None) -> Pieces | None:
        """Enter the operation: a barrier at which the ranks compare what they have begun.

        When it passes, all ranks have ended their previous operation: the staging buffers are
        free, and so is the other slot, which the next collective uses.

        Args:
            tensor: contiguous; the ranks compare where theirs lie in the memory of the group, too.

        Returns:
            The tensors of all ranks, if they lie at one offset of one allocation; else None.

        Raises:
            torch.distributed.DistBackendError: on every rank: the operations differ; see also
                `barrier`.
        """
        pieces, offset = (None, -1) if tensor is None else self.memory.locate(tensor)
        views = self.memory.headers[self._turn]
        self._turn = 1 - self._turn
        header = _HEADER.pack(offset, self._operation.encode())
        views[self.rank][:] = header
        self.barrier()
        headers = [bytes(view) for view in views]
        if headers.count(header) == self.size:
            return pieces
        texts = [_HEADER.unpack(packed)[1].rstrip(b"\0").decode() for packed in headers]
        for name, text in zip(self._names, texts, strict=True):
            if text != texts[0]:
                raise dist.DistBackendError(
                    f"ranks disagree: {self._names[0]} called {texts[0]}, but {name} called {text}"
                )
        return None

    def slots(self, dtype: torch.dtype, numel: int) -> list[Tensor]:
        """The memory for operands of at most SLOT_BYTES, one tensor per rank.

        Fill this rank's before `enter`, and read the others' after it.
        """
        return self.memory.slots(dtype, numel, self._turn)

    def abort(self, error: BaseException) -> None:
        """Mark the group as broken by an error, and leave it; a forked child does nothing."""
        if self.memory.is_own_process and not self.broken:
            interrupted = f"{self._operation} was interrupted by {type(error).__name__}"
            self.broken = str(error) or interrupted
            self.memory.left[self.rank] = True

    def require_usable(self) -> None:
        """Raise RuntimeError if the group belongs to another process or is broken."""
        if not self.memory.is_own_process:
            raise RuntimeError(
                f"this 'shm' group belongs to process {self._pid}; process {os.getpid()}, forked "
                "from it, must make a group of its own"
            )
        if self.broken:
            raise PeerFailed(f"this 'shm' group can no longer be used: {self.broken}")

    def close(self) -> None:
        """Leave the group; a forked child does nothing."""
        if self.memory.is_own_process:
            self.memory.left[self.rank] = True
            self.memory.close()

    def _wait_for(self, number: int) -> None:
        """Wait for the token of the peer with this number, which has not come yet."""
        semaphore = self._awaited[number]
        for spin in range(1, self._spins):
            if not _try_wait(semaphore):
                return
            if spin % YIELD_EVERY == 0:
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
            self._require_present(number)

    def _require_present(self, first: int) -> None:
        """Raise DistBackendError if the deadline has passed, or one of the peers from this number
        on is gone."""
        is_late = time.monotonic() >= self._deadline
        reasons = {}
        for peer in self._peers[first:]:
            try:
                # psutil counts a zombie, whose parent has not waited for it yet, as running.
                process = self._processes[peer]
                runs = process.is_running() and process.status() != psutil.STATUS_ZOMBIE
            except psutil.NoSuchProcess:
                runs = False
            reasons[peer] = "" if runs else ", has ended"
            if self.memory.left[peer]:
                reasons[peer] = ", has left the group"
        if not is_late and not any(reasons.values()):
            return
        # The last token of a rank may not be visible yet, though its end is.
        time.sleep(_TOKEN_DELAY)
        missing = []
        for semaphore, (peer, reason) in zip(self._awaited[first:], reasons.items(), strict=True):
            tokens = ctypes.c_int()
            _quick.sem_getvalue(semaphore, ctypes.byref(tokens))
            if not tokens.value and (is_late or reason):
                missing.append(f"{self._names[peer]} (pid {self._processes[peer].pid}{reason})")
        who = ", ".join(missing)
        if who and is_late:
            # In the words of torch's backends, which scripts look for.
            limit = f"{self._timeout * 1000:.0f}ms"
            raise dist.DistBackendError(f"{self._operation}: Timed out waiting {limit} for {who}")
        if who:
            raise PeerFailed(f"{self._operation} cannot complete: {who}")

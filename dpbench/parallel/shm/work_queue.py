"""The queue of a group: it runs one operation after the other, in the order of issue.

An operation is a function that blocks. An asynchronous one is left to the group's thread, so that a
rank that computes does not keep the others waiting. A thread that waits for an operation, as each
synchronous call does, runs what is queued up to it itself: no other thread has to wake up.

Callbacks of futures may wait for operations of the group, so they run in a thread of their own.
"""

from __future__ import annotations

import atexit
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from queue import SimpleQueue
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from dpbench.parallel.shm.host_tensor import HostTensor
from dpbench.parallel.shm.member import ShmMember

# Guards the ends and the futures of all operations, which take a moment.
_completion = threading.Lock()
# Seconds that the thread gets to leave an operation when the group is destroyed.
_LAST_STEP = 2.0


class Work(dist.Work):
    """One operation, and its handle with the methods of torch's.

    Attributes:
        operation: as text; see `ShmMember.begin`.
        run: does it, and returns when no other rank needs this one any more.
        limit_seconds: see `ShmMember.begin`. Its name is not `timeout`, which torch 2.14 reads.
        tensors: all that it reads or writes.
        done: whether it has ended, with or without an error.
        error: the error with which it ended, or None.
    """

    def __init__(
        self,
        operation: str,
        run: Callable[[], object],
        limit_seconds: float,
        tensors: Sequence[HostTensor],
        results: list[Tensor],
        queue: WorkQueue,
    ) -> None:
        """`results` are the value of the future; `queue` runs the operation."""
        super().__init__()
        self.operation, self.run, self.limit_seconds = operation, run, limit_seconds
        self.tensors = tensors
        self.done = False
        self.error: BaseException | None = None
        self._results = results
        self._queue = queue
        self._ended: Future[None] | None = None
        self._future: Future[Any] | None = None

    def wait(self, timeout: object = None) -> bool:
        """Wait until the operation has ended; its own timeout counts, and not `timeout`.

        Raises:
            torch.distributed.DistBackendError: it failed.
        """
        if not self.done:
            self._queue.run_until(self)
        self._outcome(None)
        return True

    def is_completed(self) -> bool:
        return self.done

    def is_success(self) -> bool:
        return self.done and self.error is None

    def result(self) -> list[Tensor]:
        return self._results

    def synchronize(self) -> None:
        self.wait()

    def get_future(self) -> Future[Any]:
        """A future of the results; it completes without anybody waiting for this work. Torch's own
        DistributedDataParallel, its communication hooks and its Join context ask for it."""
        with _completion:
            if self._future is None:
                devices = {tensor.device for tensor in self._results if tensor.is_cuda}
                self._ended = Future(devices=list(devices))
                # An error set by `set_exception` is one for Python only; C++ code, such as that
                # of torch's DDP, would take it for a result.
                self._future = self._ended.then(self._outcome)
                if self.done:
                    self._ended.set_result(None)
        return self._future

    def end(self, error: BaseException | None) -> None:
        """Mark the operation as ended, and begin to complete its future, if it has one."""
        with _completion:
            self.error, self.done, ended = error, True, self._ended
        if ended is not None:
            threading.Thread(target=ended.set_result, args=(None,), daemon=True).start()

    def _outcome(self, _: object) -> list[Tensor]:
        if self.error is not None:
            raise self.error
        for tensor in self.tensors:
            tensor.synchronize()
        return self._results


class WorkQueue:
    """The operations of one group on this rank."""

    def __init__(self, member: ShmMember) -> None:
        self._member = member
        # Operations that have not ended; the first may be running.
        self._pending: deque[Work] = deque()
        # Held by the thread that runs an operation.
        self._running = threading.Lock()
        self._for_thread: SimpleQueue[Work | None] = SimpleQueue()  # None ends it
        self._thread = threading.Thread(target=self._serve, name="dpbench-shm", daemon=True)
        self._thread.start()
        # No thread may be inside torch when the interpreter shuts down.
        atexit.register(self.close)

    def submit(self, work: Work, *, later: bool) -> None:
        """Queue an operation; run it, after those that are queued, in this thread unless later."""
        self._pending.append(work)
        if later:
            self._for_thread.put(work)
        else:
            self.run_until(work)

    def run_until(self, work: Work) -> None:
        """Run operations in this thread until this one, which is queued here, is done."""
        while not work.done:
            with self._running:
                if not work.done:
                    self._run_first()

    def close(self) -> None:
        """Fail all operations, and wait until no thread runs one; a forked child does nothing."""
        if not self._member.memory.is_own_process:
            return
        self._member.broken = self._member.broken or "it has been destroyed"
        # Another thread may end the last operation first.
        with suppress(IndexError):
            while True:
                self.run_until(self._pending[0])
        self._for_thread.put(None)
        self._thread.join(_LAST_STEP)
        atexit.unregister(self.close)

    def _run_first(self) -> None:
        """Run the first operation; call it with `_running` held."""
        work, error = self._pending[0], None
        try:
            self._member.require_usable()
            for tensor in work.tensors:
                tensor.wait()
            # While the group's thread runs one, the rank computes in another.
            spin = threading.get_ident() != self._thread.ident
            self._member.begin(work.operation, work.limit_seconds, spin=spin)
            # Views made here are used again outside of inference mode.
            inferring = torch.is_inference_mode_enabled()
            with torch.inference_mode(False) if inferring else nullcontext():
                work.run()
            for tensor in work.tensors:
                tensor.write_back()
        except BaseException as raised:
            error = raised
            # The others may have heard of it, so later operations would not match theirs.
            self._member.abort(raised)
            if not isinstance(raised, Exception):
                raise  # an interrupt is the caller's too
        finally:
            self._pending.popleft()
            work.end(error)

    def _serve(self) -> None:
        """Run asynchronous operations, in the thread of the group, until it is closed."""
        for work in iter(self._for_thread.get, None):
            self.run_until(work)
            del work  # it holds its tensors

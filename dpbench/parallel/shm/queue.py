"""The queue of a group: it runs one operation after the other, in the order of issue.

An operation is a function that blocks. Who runs it?

- A synchronous call runs in the caller's thread, if nothing is queued: no thread has to wake up.
- An asynchronous one is queued. The thread that waits for it runs it, with all those before it.
- What nobody waits for within 2 ms is run by a thread of the group, so that a rank that computes
  does not keep the others waiting; at once, if somebody asked for a future, since a wait for a
  future runs nothing.

The thread starts with the first such operation and ends when it has been idle for a second. Before
it runs the callbacks of a future it hands its task to a second one, since a callback may itself
wait for operations of the group.
"""

from __future__ import annotations

import atexit
import contextlib
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from dpbench.parallel.shm.allocation import AllocationFailed
from dpbench.parallel.shm.descriptor import Mismatch
from dpbench.parallel.shm.member import Member
from dpbench.parallel.shm.operand import Operand
from dpbench.parallel.torch_private import not_compiled

NO_TIMEOUT = timedelta(0)
# After these errors all ranks are in the same state as before the operation.
_HARMLESS = (Mismatch, AllocationFailed)
# Seconds that a queued operation is left to the thread that will wait for it.
_GRACE = 0.002
_IDLE_SECONDS = 1.0
# Seconds that threads get to leave an operation when the group is destroyed.
_LAST_STEP = 2.0


class Operation(NamedTuple):
    """What a queue runs.

    Attributes:
        name: for messages.
        function: does it; it returns when no other rank needs this one for it any more.
        timeout: in seconds, see `Member.begin`.
        sources, targets: operands that it reads and writes.
    """

    name: str
    function: Callable[[], None]
    timeout: float
    sources: Sequence[Operand]
    targets: Sequence[Operand]


@not_compiled
class Work(dist.Work):
    """The handle of a queued operation, with the methods of torch's.

    Attributes:
        operation: the operation.
        done: whether it has ended, with or without an error.
        error: the error with which it ended, or None.
        is_awaited: whether a thread is in `wait`.
        is_urgent: whether somebody may wait for its future.
    """

    def __init__(self, operation: Operation, results: list[Tensor], queue: Queue) -> None:
        """
        Args:
            operation: see the attributes.
            results: value of the future.
            queue: runs the operation.
        """
        super().__init__()
        self.operation = operation
        self.done = False
        self.error: BaseException | None = None
        self.is_awaited = False
        self.is_urgent = False
        self._results = results
        self._queue = queue
        self._lock = threading.Lock()
        self._ended: Future[None] | None = None
        self._future: Future[Any] | None = None

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Wait until the operation has ended.

        Raises:
            torch.distributed.DistBackendError: it failed, or took longer than the timeout.
        """
        if not self.done:
            limit = timeout.total_seconds() if timeout > NO_TIMEOUT else None
            self._queue.run_until(self, limit)
        if self.error is not None:
            raise self.error
        for target in self.operation.targets:
            target.synchronize()
        return True

    def is_completed(self) -> bool:
        return self.done

    def is_success(self) -> bool:
        return self.done and self.error is None

    def exception(self) -> BaseException | None:
        return self.error

    def result(self) -> list[Tensor]:
        return self._results

    def synchronize(self) -> None:
        self.wait()

    def get_future(self) -> Future[Any]:
        """A future of the results; it completes without anybody waiting for this work."""
        with self._lock:
            if self._future is None:
                devices = {tensor.device for tensor in self._results if tensor.is_cuda}
                self._ended = Future(devices=list(devices))
                # An error set by `set_exception` is one for Python only; C++ code, such as that
                # of torch's DDP, would take it for a result.
                self._future = self._ended.then(self._outcome)
                if self.done:
                    self._ended.set_result(None)
            self.is_urgent = not self.done
        if self.is_urgent:
            self._queue.serve(at_once=True)
        return self._future

    def end(self, error: BaseException | None) -> bool:
        """Mark the operation as ended; returns whether `call_back` has to be called."""
        with self._lock:
            self.error, self.done = error, True
            return self._ended is not None

    def call_back(self) -> None:
        """Complete the future; its callbacks run here."""
        assert self._ended is not None
        self._ended.set_result(None)

    def _outcome(self, _: Future[None]) -> list[Tensor]:
        if self.error is not None:
            raise self.error
        for target in self.operation.targets:
            target.synchronize()
        return self._results


@not_compiled
class FinishedWork(dist.Work):
    """Result of a synchronous call: torch waits for it at once."""

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True


FINISHED = FinishedWork()


class Queue:
    """The operations of one group on this rank."""

    def __init__(self, member: Member) -> None:
        """
        Args:
            member: this rank; the queue gives it up when an operation fails.
        """
        self._member = member
        # Operations that have not ended; the first may be running.
        self._waiting: deque[Work] = deque()
        # Held by the thread that runs an operation, but not while callbacks run.
        self._running = threading.Lock()
        # Guards the five below.
        self._guard = threading.Lock()
        self._is_served = False
        self._is_closed = False
        self._idle = 0
        self._threads: list[threading.Thread] = []
        self._wakes: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._hurry = threading.Event()
        _queues.add(self)

    def run(self, operation: Operation) -> bool:
        """Run an operation in this thread, unless others wait for their turn.

        Returns:
            Whether it was run; if not, nothing has been done.
        """
        if self._waiting or not self._running.acquire(blocking=False):
            return False
        try:
            self._run(operation, operation.timeout, spin=True)
        finally:
            self._running.release()
        for target in operation.targets:
            target.synchronize()
        return True

    def submit(self, operation: Operation, results: list[Tensor]) -> Work:
        """Queue an operation; returns its handle. `results` is the value of its future."""
        work = Work(operation, results, self)
        self._waiting.append(work)
        self.serve()
        return work

    def run_until(self, work: Work, limit: float | None) -> None:
        """Run operations in this thread until this one is done.

        Args:
            work: queued here.
            limit: in seconds, None for that of each operation.

        Raises:
            torch.distributed.DistBackendError: it is not done after the limit.
        """
        if not self._member.is_own_process:
            raise RuntimeError("only the process that issued an operation can wait for it")
        work.is_awaited = True
        deadline = None if limit is None else time.monotonic() + limit
        while not work.done:
            left = None if deadline is None else max(deadline - time.monotonic(), 0)
            # Another thread that runs already ends this operation too, or stops after its own.
            if not self._running.acquire(timeout=-1 if left is None else left):
                work.is_awaited = False
                raise dist.DistBackendError(f"{work.operation.name} took longer than {limit:g} s")
            try:
                has_callbacks, first = False, self._waiting[0] if self._waiting else None
                if first is not None and not work.done:
                    has_callbacks = self._run_first(first, left, spin=True)
            finally:
                self._running.release()
            if has_callbacks and first is not None:
                first.call_back()
        if self._waiting:
            self.serve(at_once=any(other.is_urgent for other in list(self._waiting)))

    def serve(self, *, at_once: bool = False) -> None:
        """Let a thread of the group run what is queued, if nobody else does it within a moment."""
        if at_once:
            self._hurry.set()
        with self._guard:
            if self._is_served or self._is_closed:
                return
            self._is_served = True
            if self._idle:
                self._idle -= 1
                self._wakes.put(None)
            else:
                thread = threading.Thread(target=self._serve, name="dpbench-shm", daemon=True)
                self._threads.append(thread)
                thread.start()

    def close(self) -> None:
        """Fail all operations, and wait until no thread runs one; a forked child does nothing."""
        if not self._member.is_own_process:
            return
        self._member.broken = self._member.broken or "it has been destroyed"
        self._hurry.set()
        with contextlib.suppress(dist.DistBackendError):
            while self._waiting:
                self.run_until(self._waiting[0], _LAST_STEP)
        with self._guard:
            self._is_closed = True
            threads = [each for each in self._threads if each is not threading.current_thread()]
        for _ in threads:
            self._wakes.put(None)
        for thread in threads:
            thread.join(_LAST_STEP)

    def _run(self, operation: Operation, timeout: float, *, spin: bool) -> None:
        """Run one operation; call it with `_running` held."""
        if torch.is_inference_mode_enabled():
            # Views made here are used again outside of the mode.
            with torch.inference_mode(False):
                self._run(operation, timeout, spin=spin)
            return
        member = self._member
        member.require_usable()
        for source in operation.sources:
            source.wait()
        member.begin(operation.name, timeout, spin=spin)
        barriers = member.barriers
        try:
            operation.function()
        except _HARMLESS:
            raise
        except BaseException as error:
            # Once the others have heard of it, later operations would not match theirs.
            if member.barriers != barriers:
                member.give_up(error)
            raise
        for target in operation.targets:
            target.store()

    def _run_first(self, work: Work, limit: float | None, *, spin: bool) -> bool:
        """Run the first operation; call it with `_running` held.

        Returns:
            Whether its `call_back` has to be called, after `_running` is released.
        """
        error: BaseException | None = None
        timeout = work.operation.timeout
        try:
            self._run(work.operation, timeout if limit is None else min(limit, timeout), spin=spin)
        except BaseException as raised:
            error = raised
            if not isinstance(raised, Exception):
                raise  # an interrupt is the caller's too
        finally:
            self._waiting.popleft()
            has_callbacks = work.end(error)
        return has_callbacks

    def _serve(self) -> None:
        """Run queued operations, in a thread of the group."""
        while True:
            self._hurry.wait(_GRACE)
            self._hurry.clear()
            self._run_queued()
            with self._guard:
                self._idle += 1
            if not self._wait_until_woken():
                return

    def _run_queued(self) -> None:
        while True:
            with self._guard:
                if not self._waiting or self._is_closed:
                    self._is_served = False
                    return
            with self._running:
                first = self._waiting[0] if self._waiting else None
                if first is None:
                    continue
                has_callbacks = self._run_first(first, None, spin=False)
            if has_callbacks or first.is_awaited:
                with self._guard:
                    self._is_served = False
            if has_callbacks:
                if self._waiting:
                    self.serve(at_once=True)  # by another thread
                first.call_back()
            if first.is_awaited:
                return  # the thread that waits for it goes on
            with self._guard:
                if has_callbacks and self._is_served:
                    return
                self._is_served = True

    def _wait_until_woken(self) -> bool:
        """Wait for a wake; returns False if this thread is to end."""
        while not self._is_closed:
            try:
                self._wakes.get(timeout=_IDLE_SECONDS)
                return not self._is_closed
            except queue.Empty:
                with self._guard:
                    if self._wakes.empty():
                        self._idle -= 1
                        self._threads.remove(threading.current_thread())
                        return False
        return False


_queues: weakref.WeakSet[Queue] = weakref.WeakSet()


def _close_all() -> None:
    """Stop all threads at exit: none may be inside torch when the interpreter shuts down."""
    for each in list(_queues):
        each.close()


atexit.register(_close_all)

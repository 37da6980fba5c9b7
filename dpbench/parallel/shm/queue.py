"""The queue of a group: it runs one operation after the other, in the order of issue.

An operation is a function that blocks. Who runs it?

- A synchronous call runs in the caller's thread, if nothing is queued: no thread has to wake up.
- An asynchronous one is queued. The thread that waits for it runs it, with all those before it.
- What nobody waits for within 2 ms is run by the group's thread, so that a rank that computes does
  not keep the others waiting; at once, if somebody asked for a future, since a wait for a future
  runs nothing.

Callbacks of futures may wait for operations of the group, so its thread starts another one for
them.
"""

from __future__ import annotations

import atexit
import contextlib
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from dpbench.parallel.shm.member import Member
from dpbench.parallel.shm.operand import Operand

# Seconds that a queued operation is left to the thread that will wait for it.
_GRACE = 0.002
# Guards the ends and the futures of all operations, which take a moment.
_completion = threading.Lock()
# Seconds that the thread gets to leave an operation when the group is destroyed.
_LAST_STEP = 2.0


class Work(dist.Work):
    """One operation, and its handle with the methods of torch's.

    Attributes:
        name: for messages.
        functions: do it, in order; the last returns when no other rank needs this one any more.
        limit_seconds: see `Member.begin`. Its name is not `timeout`, which torch 2.14 reads itself.
        operands: all that it reads or writes.
        done: whether it has ended, with or without an error.
        error: the error with which it ended, or None.
    """

    def __init__(
        self,
        name: str,
        functions: Sequence[Callable[[], object]],
        limit_seconds: float,
        operands: Sequence[Operand],
        results: list[Tensor],
        queue: Queue,
    ) -> None:
        """
        Args:
            name, functions, limit_seconds, operands: see the attributes.
            results: value of the future.
            queue: runs the operation.
        """
        super().__init__()
        self.name, self.functions, self.limit_seconds = name, functions, limit_seconds
        self.operands = operands
        self.done = False
        self.error: BaseException | None = None
        self._results = results
        self._queue = queue
        self._ended: Future[None] | None = None
        self._future: Future[Any] | None = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until the operation has ended.

        With a timeout, which torch reads as none if it is zero, the group's thread does the work,
        and goes on after the timeout has passed.

        Raises:
            torch.distributed.DistBackendError: it failed, or has not ended within the timeout.
        """
        if not self.done and timeout is not None and timeout > timedelta(0):
            ended = threading.Event()
            self.get_future().add_done_callback(lambda _: ended.set())
            if not ended.wait(timeout.total_seconds()):
                limit = f"{timeout.total_seconds() * 1000:.0f}ms"
                raise dist.DistBackendError(
                    f"{self.name}: Timed out waiting {limit} for it to end; it goes on"
                )
        elif not self.done:
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
        """A future of the results; it completes without anybody waiting for this work."""
        with _completion:
            if self._future is None:
                devices = {tensor.device for tensor in self._results if tensor.is_cuda}
                self._ended = Future(devices=list(devices))
                # An error set by `set_exception` is one for Python only; C++ code, such as that
                # of torch's DDP, would take it for a result.
                self._future = self._ended.then(self._outcome)
                if self.done:
                    self._ended.set_result(None)
        if not self.done:
            self._queue.serve(at_once=True)
        return self._future

    def end(self, error: BaseException | None) -> Callable[[], None] | None:
        """Mark the operation as ended; returns what completes its future, if it has one."""
        with _completion:
            self.error, self.done = error, True
            return None if self._ended is None else partial(self._ended.set_result, None)

    def _outcome(self, _: object) -> list[Tensor]:
        if self.error is not None:
            raise self.error
        for operand in self.operands:
            operand.synchronize()
        return self._results


class Queue:
    """The operations of one group on this rank."""

    def __init__(self, member: Member) -> None:
        """
        Args:
            member: this rank; the queue gives it up when an operation fails.
        """
        self._member = member
        # Operations that have not ended; the first may be running.
        self._pending: deque[Work] = deque()
        # Held by the thread that runs an operation, but not while callbacks run.
        self._running = threading.Lock()
        # Guards the two below.
        self._guard = threading.Lock()
        self._thread: threading.Thread | None = None
        self._waiters = 0
        self._is_closed = False
        self._wake, self._hurry = threading.Event(), threading.Event()
        _queues.add(self)

    def start(self, work: Work, *, later: bool) -> None:
        """Run an operation in this thread, unless others wait for their turn; queue it otherwise.

        Args:
            work: the operation.
            later: queue it in any case.
        """
        if later or self._pending or not self._running.acquire(blocking=False):
            self._pending.append(work)
            self.serve()
            return
        try:
            self._run(work, spin=True)
        finally:
            self._running.release()
        work.done = True

    def run_until(self, work: Work) -> None:
        """Run operations in this thread until this one, which is queued here, is done."""
        while not work.done:
            complete = None
            with self._guard:
                self._waiters += 1
            try:
                with self._running:
                    if self._pending and not work.done:
                        complete = self._run_first(spin=True)
            finally:
                with self._guard:
                    self._waiters -= 1
                if self._pending:
                    self.serve()
            if complete is not None:
                # This thread does not count as a waiter now: a callback may wait for a future of
                # the group, which only the group's thread can complete.
                complete()

    def serve(self, *, at_once: bool = False) -> None:
        """Let the group's thread run what is queued, if nobody else does it within a moment."""
        if at_once:
            self._hurry.set()
        if self._thread is None:
            with self._guard:
                if self._thread is None:
                    name = "dpbench-shm"
                    self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
                    self._thread.start()
        self._wake.set()

    def close(self) -> None:
        """Fail all operations, and wait until no thread runs one; a forked child does nothing."""
        if not self._member.is_own_process:
            return
        self._member.broken = self._member.broken or "it has been destroyed"
        # Another thread may end the last operation first.
        with contextlib.suppress(IndexError):
            while True:
                self.run_until(self._pending[0])
        self._is_closed = True
        if self._thread is not None:
            self.serve(at_once=True)
            self._thread.join(_LAST_STEP)

    def _run(self, work: Work, *, spin: bool) -> None:
        """Run one operation; call it with `_running` held."""
        if torch.is_inference_mode_enabled():
            # Views made here are used again outside of the mode.
            with torch.inference_mode(False):
                self._run(work, spin=spin)
            return
        member = self._member
        member.require_usable()
        try:
            for operand in work.operands:
                operand.wait()
            member.begin(work.name, work.limit_seconds, spin=spin)
            for function in work.functions:
                function()
            for operand in work.operands:
                operand.store()
        except BaseException as error:
            # The others may have heard of it, so later operations would not match theirs.
            member.give_up(error)
            raise

    def _run_first(self, *, spin: bool) -> Callable[[], None] | None:
        """Run the first operation; call it with `_running` held.

        Returns:
            What completes its future, to be called after `_running` is released.
        """
        work, error = self._pending[0], None
        try:
            self._run(work, spin=spin)
        except BaseException as raised:
            error = raised
            if not isinstance(raised, Exception):
                raise  # an interrupt is the caller's too
        finally:
            self._pending.popleft()
            complete = work.end(error)
        return complete

    def _serve(self) -> None:
        """Run queued operations, in the thread of the group, until it is closed."""
        while not self._is_closed:
            self._wake.wait()
            self._hurry.wait(_GRACE)
            self._hurry.clear()
            self._wake.clear()
            # A thread that waits goes on by itself.
            while self._pending and not self._waiters:
                with self._running:
                    complete = self._run_first(spin=False) if self._pending else None
                if complete is not None:
                    threading.Thread(target=complete, daemon=True).start()


_queues: weakref.WeakSet[Queue] = weakref.WeakSet()


def _close_all() -> None:
    """Stop all threads at exit: none may be inside torch when the interpreter shuts down."""
    for each in list(_queues):
        each.close()


atexit.register(_close_all)

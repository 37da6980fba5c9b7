"""The handle of an operation that has been issued."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from dpbench.parallel import cuda
from dpbench.parallel.compilation import not_compiled
from dpbench.parallel.shm.member import Steps
from dpbench.parallel.shm.operand import Operand

if TYPE_CHECKING:
    from dpbench.parallel.shm.engine import Engine
    from dpbench.parallel.shm.lane import Lane


NO_TIMEOUT = timedelta(0)


@not_compiled
class FinishedWork(dist.Work):
    """Result of a synchronous call: torch waits for it at once."""

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True


@not_compiled
class Work(dist.Work):
    """A queued operation.

    Attributes:
        name: the operation's name, for messages.
        steps: the operation's steps.
        timeout: in seconds.
        deadline: on the clock of time.monotonic.
        done: whether it has ended, with or without an error.
        value: return value of the steps.
        urgent: whether somebody may wait for it without driving it.
    """

    def __init__(
        self,
        name: str,
        steps: Steps[Any],
        timeout: float,
        results: list[Tensor],
        targets: Sequence[Operand],
        lane: Lane,
        engine: Engine,
        event: Event | None,
    ) -> None:
        """
        Args:
            timeout: in seconds from now.
            results: value of the future.
            targets: operands that the operation writes.
            lane: the queue of this operation.
            engine: advances the operation.
            event: event for a running profiler, or None.
        """
        super().__init__()
        self.name = name
        self.steps = steps
        self.timeout = timeout
        self.deadline = time.monotonic() + timeout
        self.done = False
        # The GPU's stream waits for the copy back, and nobody polls meanwhile.
        self.urgent = bool(targets) and targets[0].is_on_device
        self.value: Any = None
        self._results = results
        self._targets = targets
        self._lane = lane
        self._engine = engine
        self._event = event
        self._error: BaseException | None = None
        self._ended: Future[None] | None = None
        self._future: Future[Any] | None = None
        self._lock = threading.Lock()

    def end(self, error: BaseException | None) -> bool:
        """Mark the operation as ended; returns whether it has callbacks to run."""
        if self._event is not None:
            self._event.end()
        with self._lock:
            self._error = error
            self.done = True
            return self._ended is not None

    def call_back(self) -> None:
        """Complete the future; its callbacks run here."""
        assert self._ended is not None
        self._ended.set_result(None)

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Wait until the operation has ended.

        Raises:
            torch.distributed.DistBackendError: it failed, or took longer than the timeout.
        """
        if not self.done:
            limit = timeout.total_seconds() if timeout > NO_TIMEOUT else None
            self._engine.wait(self, self._lane, limit)
        if self._error is not None:
            raise self._error
        for target in self._targets:
            target.synchronize()
        return True

    def is_completed(self) -> bool:
        return self.done

    def is_success(self) -> bool:
        return self.done and self._error is None

    def exception(self) -> BaseException | None:
        return self._error

    def result(self) -> list[Tensor]:
        return self._results

    def synchronize(self) -> None:
        self.wait()

    def get_future(self) -> Future[Any]:
        """A future of the results; it completes without anybody waiting for this work."""
        with self._lock:
            if self._future is None:
                self._ended = cuda.future_of(self._results)
                # An error set by `set_exception` is one for Python only; C++ code, such as that
                # of torch's DDP, would take it for a result.
                self._future = self._ended.then(self._outcome)
                if self.done:
                    self._ended.set_result(None)
                self.urgent = not self.done
            future = self._future
        if self.urgent:
            self._engine.hurry()
        return future

    def _outcome(self, _: Future[None]) -> list[Tensor]:
        if self._error is not None:
            raise self._error
        for target in self._targets:
            target.synchronize()
        return self._results


_autograd: Any = torch.autograd
is_profiling = _autograd._profiler_enabled
"""Whether a profiler records this thread; the call takes negligible time."""


class Event:
    """A profiler event, from the issue of an operation to its end."""

    def __init__(self, backend: str, name: str, tensors: Sequence[Tensor]) -> None:
        """
        Args:
            backend: the name of the group's backend.
            name: the operation's name.
            tensors: tensors whose shapes are recorded if the profiler wants shapes.
        """
        record = _autograd._record_function_with_args_enter(f"{backend}:{name}", *tensors)
        self._ended: Future[None] = Future()
        # The future carries this thread's profiler state to the thread that ends the event.
        torch.ops.profiler._call_end_callbacks_on_jit_fut._RecordFunction(record, self._ended)

    def end(self) -> None:
        """Record the end of the operation."""
        # Always ended in another thread: this marks the event as a backend's in a profile, as
        # with torch's own backends, which have threads for it.
        thread = threading.Thread(target=self._ended.set_result, args=(None,))
        thread.start()
        thread.join()

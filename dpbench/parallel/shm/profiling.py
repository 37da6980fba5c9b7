"""Events of operations for torch's profiler, as its own backends make them: "shm:all_reduce"."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.futures import Future

_autograd: Any = torch.autograd
is_profiling = _autograd._profiler_enabled
"""Whether a profiler records what this thread does; takes no time worth mentioning."""


class Event:
    """From the issue of an operation to its end."""

    def __init__(self, name: str, tensors: Sequence[Tensor]) -> None:
        """
        Args:
            name: of the operation.
            tensors: whose shapes are recorded, if the profiler wants any.
        """
        record = _autograd._record_function_with_args_enter(f"shm:{name}", *tensors)
        self._ended: Future[None] = Future()
        # A future carries the profiler's state, which belongs to this thread, to the other one.
        torch.ops.profiler._call_end_callbacks_on_jit_fut._RecordFunction(record, self._ended)

    def end(self) -> None:
        """The operation has ended."""
        # In another thread always: that is what marks an event as a backend's in a profile, as
        # it is with torch's own, which have threads for it.
        thread = threading.Thread(target=self._ended.set_result, args=(None,))
        thread.start()
        thread.join()

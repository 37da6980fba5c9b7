"""The library's operations on CUDA streams: few functions, so that tests can check their order.

What runs on a stream runs later than the line that starts it. Each function documents which work
waits for which; tests record the calls and compare.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

cuda: Any = torch.cuda
"""torch.cuda; tests replace it with a stand-in that records which work waits for which."""


def is_capturing() -> bool:
    """Whether the current stream is being captured into a CUDA graph, so that nothing may wait for
    a device or query it."""
    return bool(cuda.is_current_stream_capturing())


class HostReport:
    """Copies numbers from a device to the host without waiting, until they are needed."""

    def __init__(self, like: Tensor) -> None:
        """
        Args:
            like: a tensor with the count and dtype of the numbers.
        """
        self._on_host = pinned(like.numel(), like.dtype)
        self._copied = cuda.Event()
        self._is_on_its_way = False

    def send(self, values: Tensor) -> None:
        """Copy the values to the host once the work queued on their device's current stream is
        done. Not while a graph is captured, since that copy could not be waited for."""
        stream = cuda.current_stream(values.device)
        with cuda.stream(stream):  # makes its device the current one
            if is_capturing():
                return
            self._on_host.copy_(values, non_blocking=True)
            self._copied.record(stream)
            self._is_on_its_way = True

    def take(self) -> Tensor | None:
        """The values sent last, once they have arrived; None if nothing was sent since the last
        call."""
        if not self._is_on_its_way or is_capturing():
            return None
        self._is_on_its_way = False
        self._copied.synchronize()
        return self._on_host


def pinned(numel: int, dtype: torch.dtype) -> Tensor:
    """Pinned host memory, which a device reads and writes by DMA."""
    # Explicit device: else torch refuses after torch.set_default_device("cuda").
    return torch.empty(numel, dtype=dtype, device="cpu", pin_memory=True)


def moved_in(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on a CUDA device, for work on that device's current stream.

    The call returns at once, unless the tensor is in pinned memory: then it returns when the copy
    is done, since the caller may reuse that memory. It waits for the copy alone, which runs on a
    stream of its own, not for the work queued on the current stream.
    """
    if tensor.device.type != "cpu" or not tensor.is_pinned():
        return tensor.to(device, non_blocking=True)  # pageable memory is read before it returns
    current, aside = cuda.current_stream(device), _copy_stream(device)
    with cuda.stream(aside):
        moved = tensor.to(device)
    current.wait_stream(aside)
    moved.record_stream(current)
    return moved


@cache
def _copy_stream(device: torch.device) -> Any:
    """The stream for all such copies to a device in this process."""
    return cuda.Stream(device=device)

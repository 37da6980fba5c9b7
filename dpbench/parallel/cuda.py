"""The library's operations on CUDA streams: few functions, so that tests can check their order.

What runs on a stream runs later than the line that starts it. Each function documents which work
waits for which; tests record the calls and compare.

For shared memory, CUDA tensors go through the host. Every order that a stream does not give by
itself is made there by an event:

    what the caller's stream was given before  →  copy to the host  →  the host reads it
    what the host wrote  →  copy to the device  →  what the caller's stream is given after `join`

These copies run on two streams of the device that nothing else uses, one per direction, so that
they wait neither for the computation that goes on meanwhile nor for each other.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.futures import Future

cuda: Any = torch.cuda
"""torch.cuda; tests replace it with a stand-in that records which work waits for which."""

# Seconds up to which a wait only naps, since other work is pending, and the length of the nap.
_SHORT, _NAP = 0.001, 100e-6


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


class HostCopy:
    """A CUDA tensor's counterpart in pinned host memory.

    The current device does not matter; the caller's stream is the current stream of the tensor's
    device.

    Attributes:
        host: 1-D, contiguous.
    """

    excuse = "whose copy from its GPU has not arrived"

    def __init__(self, tensor: Tensor, *, read: bool) -> None:
        """Begin the copy to the host.

        Args:
            tensor: on a CUDA device.
            read: whether its values are needed; if not, nothing is copied yet.

        Raises:
            RuntimeError: a CUDA graph is being captured, which cannot include the host.
        """
        if is_capturing():
            raise RuntimeError(
                "shm and shm+gloo take CUDA tensors through the host, which a CUDA graph cannot "
                "capture; use nccl"
            )
        self._tensor = tensor
        self._issued = cuda.current_stream(tensor.device).record_event()
        self._arrived: Any = None
        self._returned: Any = None
        stream = _host_streams(tensor.device)[0]
        with cuda.stream(stream):
            self.host = pinned(tensor.numel(), tensor.dtype)
            if read:
                stream.wait_event(self._issued)
                self.host.view(tensor.shape).copy_(tensor, non_blocking=True)
                # Keeps the allocator from reusing the memory before the copy is done.
                tensor.record_stream(stream)
                self._arrived = cuda.Event(blocking=True)
                self._arrived.record(stream)

    @property
    def has_arrived(self) -> bool:
        """Whether the host may read the values."""
        return self._arrived is None or bool(self._arrived.query())

    def wait(self, seconds: float = math.inf) -> None:
        """Block until the host may read the values, or for a moment if the time is short.

        It releases the interpreter lock. A stream knows no limit on a wait.
        """
        if seconds > _SHORT:
            self._arrived.synchronize()
        else:
            time.sleep(_NAP)

    def send_back(self) -> None:
        """Start copying the values that the host has written to the tensor."""
        stream = _host_streams(self._tensor.device)[1]
        # A tensor made in inference mode may only be written in it.
        with cuda.stream(stream), torch.inference_mode(self._tensor.is_inference()):
            stream.wait_event(self._issued)
            self._tensor.copy_(self.host.view(self._tensor.shape), non_blocking=True)
            self._tensor.record_stream(stream)
            self._returned = stream.record_event()

    def join(self) -> None:
        """Make the caller's current stream wait for the copy that was sent back."""
        if self._returned is not None:
            cuda.current_stream(self._tensor.device).wait_event(self._returned)


def future_of(tensors: Sequence[Tensor]) -> Future[Any]:
    """A future whose callbacks run on streams that wait for the work queued on the current ones."""
    devices = {tensor.device for tensor in tensors if tensor.is_cuda}
    return Future(devices=list(devices))


@cache
def _host_streams(device: torch.device) -> tuple[Any, Any]:
    """The streams to the host and to the device; the same for all operations of the process."""
    return cuda.Stream(device=device), cuda.Stream(device=device)

"""Copies between a CUDA tensor and host memory; the backend's only module that needs CUDA.

Every order that a stream does not give by itself is made here by an event:

    what the caller's stream was given before  →  copy to the host  →  the host reads it
    what the host wrote  →  copy to the device  →  what the caller's stream is given after `join`

Copies run on two streams of the device that nothing else uses, one per direction, so that they
wait neither for the computation that goes on meanwhile nor for each other.
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

from dpbench.parallel.cuda import pinned

cuda: Any = torch.cuda
"""torch.cuda; tests replace it with a stand-in that records which work waits for which."""


# Seconds up to which a wait only naps, since other work is pending, and the length of the nap.
_SHORT, _NAP = 0.001, 100e-6


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
        if cuda.is_current_stream_capturing():
            raise RuntimeError(
                "shm and shm+gloo take CUDA tensors through the host, which a CUDA graph cannot "
                "capture; use nccl"
            )
        self._tensor = tensor
        self._issued = cuda.current_stream(tensor.device).record_event()
        self._arrived: Any = None
        self._returned: Any = None
        stream = _streams(tensor.device)[0]
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
        stream = _streams(self._tensor.device)[1]
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
def _streams(device: torch.device) -> tuple[Any, Any]:
    """The streams to the host and to the device; the same for all operations of the process."""
    return cuda.Stream(device=device), cuda.Stream(device=device)

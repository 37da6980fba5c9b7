"""CUDA tensors in collectives: they go through pinned memory of the host."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

cuda = torch.cuda


class HostCopy:
    """A CUDA tensor's counterpart in pinned host memory.

    The caller's stream is the current stream of the tensor's device. The order is

        what the caller's stream was given before  →  copy to the host  →  `wait` returns
        `send_back`  →  copy to the device  →  what the caller's stream is given after `join`

    Both copies run on a stream that nothing else uses, so that computation goes on meanwhile.

    Attributes:
        host: 1-D, contiguous.
    """

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
                "shm takes CUDA tensors through the host, which a CUDA graph cannot capture; use "
                "nccl"
            )
        self._tensor = tensor
        self._stream = _stream(tensor.device)
        self._arrived = cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        self._returned: torch.cuda.Event | None = None
        # Also where nothing is read: what is sent back must not overtake the caller's stream.
        self._stream.wait_stream(cuda.current_stream(tensor.device))
        with cuda.stream(self._stream):
            self.host = torch.empty(
                tensor.numel(), dtype=tensor.dtype, pin_memory=True, device="cpu"
            )
            if read:
                self.host.view(tensor.shape).copy_(tensor, non_blocking=True)
                # Keeps the allocator from reusing the memory before the copy is done.
                tensor.record_stream(self._stream)
            self._arrived.record(self._stream)

    def wait(self) -> None:
        """Block until the host may read the values; it releases the interpreter lock."""
        self._arrived.synchronize()

    def send_back(self) -> None:
        """Start copying the values that the host has written to the tensor."""
        with cuda.stream(self._stream):
            self._tensor.copy_(self.host.view(self._tensor.shape), non_blocking=True)
            self._tensor.record_stream(self._stream)
            self._returned = self._stream.record_event()

    def join(self) -> None:
        """Make the caller's current stream wait for the copy that was sent back."""
        if self._returned is not None:
            cuda.current_stream(self._tensor.device).wait_event(self._returned)


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    return cuda.Stream(device=device)  # type: ignore[no-untyped-call]

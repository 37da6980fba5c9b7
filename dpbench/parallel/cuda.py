"""What the library does on CUDA streams: few functions, so that the order of their calls is tested.

What runs on a stream runs later than the line that starts it. Each function says what waits for
what; tests record the calls and compare.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

cuda: Any = torch.cuda
"""Where tests put a stand-in that records what waits for what."""


def is_capturing() -> bool:
    """Whether the current stream is recorded into a CUDA graph, so that nothing may be waited for
    or asked of a device."""
    return bool(cuda.is_current_stream_capturing())


class HostReport:
    """Numbers on a device that go to the host without a wait, and are waited for when needed."""

    def __init__(self, like: Tensor) -> None:
        """
        Args:
            like: has their count and dtype.
        """
        self._on_host = pinned(like.numel(), like.dtype)
        self._copied = cuda.Event()
        self._is_on_its_way = False

    def send(self, values: Tensor) -> None:
        """Send what they are when the work is done that has been given to the current stream of
        their device. Not while a graph is captured, which could not be waited for."""
        stream = cuda.current_stream(values.device)
        with cuda.stream(stream):  # makes its device the current one
            if is_capturing():
                return
            self._on_host.copy_(values, non_blocking=True)
            self._copied.record(stream)
            self._is_on_its_way = True

    def take(self) -> Tensor | None:
        """What was sent last, when it has arrived; None if nothing was since it was taken."""
        if not self._is_on_its_way or is_capturing():
            return None
        self._is_on_its_way = False
        self._copied.synchronize()
        return self._on_host


def pinned(numel: int, dtype: torch.dtype) -> Tensor:
    """Host memory that a device copies from and to by itself."""
    # Without `device`, torch.set_default_device("cuda") would make torch refuse.
    return torch.empty(numel, dtype=dtype, device="cpu", pin_memory=True)


def moved_in(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on a CUDA device, for work on that device's current stream.

    The host returns at once, unless the tensor is in pinned memory: then when the copy is done, as
    the caller may fill that memory again. It waits for the copy alone, which is on a stream of its
    own, and not for what the current stream still has to do.
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
    """The same for all copies of the process."""
    return cuda.Stream(device=device)

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


class LateFlag:
    """A number on a device that the host reads without waiting: one step late, or later."""

    def __init__(self, like: Tensor) -> None:
        """
        Args:
            like: has the number's dtype.
        """
        self._on_host = pinned(1, like.dtype).zero_()
        self._copied = cuda.Event()

    def is_set(self, value: Tensor) -> bool:
        """Whether the number was other than zero when it was last read, and read it again.

        Args:
            value: of one element; the number, when the work is done that has been given to the
                current stream of its device.
        """
        stream = cuda.current_stream(value.device)
        with cuda.stream(stream):  # makes its device the current one
            if is_capturing() or not self._copied.query():
                return False
            was_set = bool(self._on_host.item())
            self._on_host.copy_(value, non_blocking=True)
            self._copied.record(stream)
        return was_set


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

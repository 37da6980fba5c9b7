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

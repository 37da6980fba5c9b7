"""Copying samples from host memory to a device, on CUDA beside the computation."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

from dpbench.data.batch import Samples
from dpbench.parallel.tree import map_tensors, tensors


class Transfer:
    """Copies to one device; to CUDA from pinned memory, on a stream of its own.

    Whoever copies calls `move` inside of `copying`, and notes `copied`; whoever computes waits for
    that with `receive`.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = _side_stream(device) if device.type == "cuda" else None

    def copying(self) -> AbstractContextManager[object]:
        # Also makes the device the current one in the thread: pinning would else make a context on
        # the first GPU for every rank.
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def move(self, samples: Samples) -> Samples:
        """The samples on the device, perhaps still on their way."""
        return map_tensors(self._move, samples)

    def copied(self) -> torch.cuda.Event | None:
        """When all copies until now are done; None where they are already."""
        return None if self._stream is None else self._stream.record_event()

    def _move(self, tensor: torch.Tensor) -> torch.Tensor:
        if self._stream is None:
            return tensor.to(self._device)
        return tensor.pin_memory().to(self._device, non_blocking=True)


def receive(samples: Samples, copied: torch.cuda.Event | None) -> None:
    """Let the computation wait for the copies, and their memory for the computation."""
    if copied is None:
        return
    found = tensors(samples)
    stream = torch.cuda.current_stream(found[0].device)
    stream.wait_event(copied)
    for tensor in found:
        tensor.record_stream(stream)


def _side_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

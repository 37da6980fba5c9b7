"""Tensors in the form the algorithms take: 1-D, contiguous, in the memory of the process.

Every problem with a tensor is found when its Operand is made, before the other ranks hear of the
operation: such an error concerns this rank only.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, cuda


class Operand:
    """A tensor of the caller and its flat counterpart, which is the same memory if it can be.

    A CUDA tensor goes through pinned memory of the host. The current stream of its device is the
    caller's, and the order is

        what the caller's stream was given before  →  copy to the host  →  `wait` returns
        `store`  →  copy to the device  →  what the caller's stream is given after `synchronize`

    Both copies run on a stream that nothing else uses, so that computation goes on meanwhile.

    Attributes:
        flat: 1-D, contiguous, on the CPU.
    """

    __slots__ = ("_arrived", "_is_copied", "_is_written", "_returned", "_tensor", "flat")

    def __init__(self, tensor: Tensor, *, read: bool = True, write: bool = False) -> None:
        """
        Args:
            tensor: dense, on the CPU or a CUDA device.
            read: whether the tensor's values are needed.
            write: whether the operation changes them.

        Raises:
            ValueError: the tensor is of another kind, or one that cannot be written.
        """
        if tensor.layout is not torch.strided or not (tensor.is_cpu or tensor.is_cuda):
            raise ValueError(
                f"shm takes dense CPU and CUDA tensors, got {tensor.layout} on {tensor.device}"
            )
        if write and not tensor.is_contiguous() and _repeats(tensor):
            raise ValueError(
                f"shm cannot write to a tensor whose elements share memory, got shape "
                f"{tuple(tensor.shape)} with strides {tensor.stride()}"
            )
        self._tensor = tensor.detach() if tensor.requires_grad else tensor
        self._is_written = write
        self._arrived: cuda.Event | None = None
        self._returned: cuda.Event | None = None
        self._is_copied = not (tensor.is_cpu and tensor.is_contiguous()) or (
            tensor.is_conj() or tensor.is_neg() or tensor.is_inference()
        )
        if not self._is_copied:
            self.flat = self._tensor.view(-1)
            if tensor.numel() < 2:  # contiguous with any stride
                self.flat = self.flat.as_strided((tensor.numel(),), (1,))
            return
        # Nothing that collectives keep or pass to another thread may be of inference mode.
        with torch.inference_mode(False):
            if tensor.is_cuda:
                self._copy_from_device(read=read)
                return
            self.flat = torch.empty(tensor.numel(), dtype=tensor.dtype, device="cpu")
            if read:
                self.flat.view(tensor.shape).copy_(self._tensor)

    def _copy_from_device(self, *, read: bool) -> None:
        tensor, stream = self._tensor, _stream(self._tensor.device)
        arrived = self._arrived = cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        # Also where nothing is read: what is sent back must not overtake the caller's stream.
        stream.wait_stream(cuda.current_stream(tensor.device))
        with cuda.stream(stream):
            self.flat = torch.empty(
                tensor.numel(), dtype=tensor.dtype, pin_memory=True, device="cpu"
            )
            if read:
                self.flat.view(tensor.shape).copy_(tensor, non_blocking=True)
                # Keeps the allocator from reusing the memory before the copy is done.
                tensor.record_stream(stream)
            arrived.record(stream)

    def wait(self) -> None:
        """Block until `flat` holds the tensor's values."""
        if self._arrived is not None:
            self._arrived.synchronize()

    def store(self) -> None:
        """Put the values of `flat` into the tensor, or begin to, if the operation changes it."""
        if not (self._is_written and self._is_copied):
            return
        # A tensor made in inference mode may only be written in it.
        with torch.inference_mode(self._tensor.is_inference()):
            if self._arrived is None:
                self._tensor.copy_(self.flat.view(self._tensor.shape))
                return
            stream = _stream(self._tensor.device)
            with cuda.stream(stream):
                self._tensor.copy_(self.flat.view(self._tensor.shape), non_blocking=True)
                self._tensor.record_stream(stream)
                self._returned = stream.record_event()

    def synchronize(self) -> None:
        """Let the current stream of the tensor's device wait for `store`."""
        if self._returned is not None:
            cuda.current_stream(self._tensor.device).wait_event(self._returned)


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    return cuda.Stream(device=device)  # type: ignore[no-untyped-call]


def _repeats(tensor: Tensor) -> bool:
    """Whether the elements along some side are all one, as after `expand`."""
    sides = zip(tensor.shape, tensor.stride(), strict=True)
    return any(count > 1 and step == 0 for count, step in sides)


def only(things: Sequence[Any]) -> Any:
    """The single element of a list; torch's lists date from several devices per process."""
    if len(things) != 1:
        raise ValueError(f"got {len(things)} tensors or lists of them, expected 1")
    return things[0]

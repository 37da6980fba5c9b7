"""Tensors in the form that the algorithms take: 1-D, contiguous, in the memory of the process.

Every problem with the kind of a tensor is found when its HostTensor is made, before the other ranks
hear of the operation: such an error concerns this rank only.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dpbench.parallel import devices


def on_host(tensor: Tensor, *, read: bool = True, write: bool = False) -> HostTensor:
    """The HostTensor of a tensor.

    Args:
        tensor: dense, on the CPU or a CUDA device.
        read: whether the tensor's values are needed.
        write: whether the operation changes them.

    Raises:
        ValueError: the tensor is of another kind.
    """
    if tensor.layout is not torch.strided or not (tensor.is_cpu or tensor.is_cuda):
        raise ValueError(
            f"shm takes dense CPU and CUDA tensors, got {tensor.layout} on {tensor.device}"
        )
    kind = HostTensor if tensor.is_cpu else CudaHostTensor
    return kind(tensor.detach() if tensor.requires_grad else tensor, read=read, write=write)


class HostTensor:
    """A tensor of the caller and its flat counterpart, which is the same memory if it can be.

    Attributes:
        flat: 1-D, contiguous, on the CPU.
    """

    __slots__ = ("_target", "flat")

    def __init__(self, tensor: Tensor, *, read: bool, write: bool) -> None:
        """For `on_host`."""
        self._target: Tensor | None = None  # what `write_back` copies to
        is_plain = tensor.is_contiguous() and not (
            tensor.is_conj() or tensor.is_neg() or tensor.is_inference()
        )
        if is_plain:
            self.flat = tensor.view(-1)
            if tensor.numel() < 2:  # contiguous with any stride
                self.flat = self.flat.as_strided((tensor.numel(),), (1,))
            return
        self._target = tensor if write else None
        # Nothing that algorithms keep or pass to another thread may be of inference mode.
        with torch.inference_mode(False):
            self.flat = torch.empty(tensor.numel(), dtype=tensor.dtype, device="cpu")
            if read:
                self.flat.view(tensor.shape).copy_(tensor)

    def wait(self) -> None:
        """Block until `flat` holds the tensor's values."""

    def write_back(self) -> None:
        """Put the values of `flat` into the tensor, or begin to, if the operation changes it."""
        if self._target is not None:
            # A tensor made in inference mode may only be written in it.
            with torch.inference_mode(self._target.is_inference()):
                self._target.copy_(self.flat.view(self._target.shape), non_blocking=True)

    def synchronize(self) -> None:
        """Let the current stream of the tensor's device wait for `write_back`."""


class CudaHostTensor(HostTensor):
    """A CUDA tensor, whose flat counterpart is in pinned memory of the host.

    The current stream of its device is the caller's, and the order is

        what the caller's stream was given before  →  copy to the host  →  `wait` returns
        `write_back`  →  copy to the device  →  what that stream is given after `synchronize`

    Both copies run on a stream of their own, so that computation and other copies go on meanwhile.
    """

    def __init__(self, tensor: Tensor, *, read: bool, write: bool) -> None:
        """Begin to copy the tensor to the host, if its values are needed."""
        self._target = tensor if write else None
        self._stream = devices.cuda.Stream(device=tensor.device)
        self._arrived = devices.cuda.Event(blocking=True)
        self._returned: torch.Event | None = None
        # Also where nothing is read: what is sent back must not overtake the caller's stream.
        self._stream.wait_stream(devices.cuda.current_stream(tensor.device))
        with torch.inference_mode(False), devices.cuda.stream(self._stream):
            self.flat = devices.pinned(tensor.numel(), tensor.dtype)
            if read:
                self.flat.view(tensor.shape).copy_(tensor, non_blocking=True)
                # Keeps the allocator from reusing the memory before the copy is done.
                tensor.record_stream(self._stream)
            self._arrived.record(self._stream)

    def wait(self) -> None:
        self._arrived.synchronize()

    def write_back(self) -> None:
        if self._target is not None:
            with devices.cuda.stream(self._stream):
                super().write_back()
                self._target.record_stream(self._stream)
                self._returned = self._stream.record_event()

    def synchronize(self) -> None:
        if self._target is not None and self._returned is not None:
            devices.cuda.current_stream(self._target.device).wait_event(self._returned)

"""Tensors in the form that the collectives take: 1-D, contiguous, in the memory of the process.

Every problem with the kind of a tensor is found when its HostTensor is made, before the other ranks
hear of the operation: such an error concerns this rank only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dpbench.parallel.devices import HostCopy


class HostTensor:
    """A tensor of the caller and its flat counterpart, which is the same memory if it can be.

    A CUDA tensor goes through pinned memory of the host; see HostCopy for the order of its copies.

    Attributes:
        flat: 1-D, contiguous, on the CPU.
    """

    __slots__ = ("_host", "_is_copied", "_is_written", "_tensor", "flat")

    def __init__(self, tensor: Tensor, *, read: bool = True, write: bool = False) -> None:
        """
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
        self._tensor = tensor.detach() if tensor.requires_grad else tensor
        self._is_written = write
        self._host: HostCopy | None = None
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
                self._host = HostCopy(self._tensor, read=read)
                self.flat = self._host.flat
                return
            self.flat = torch.empty(tensor.numel(), dtype=tensor.dtype, device="cpu")
            if read:
                self.flat.view(tensor.shape).copy_(self._tensor)

    def wait(self) -> None:
        """Block until `flat` holds the tensor's values."""
        if self._host is not None:
            self._host.wait()

    def store(self) -> None:
        """Put the values of `flat` into the tensor, or begin to, if the operation changes it."""
        if not (self._is_written and self._is_copied):
            return
        # A tensor made in inference mode may only be written in it.
        with torch.inference_mode(self._tensor.is_inference()):
            if self._host is None:
                self._tensor.copy_(self.flat.view(self._tensor.shape))
            else:
                self._host.store()

    def synchronize(self) -> None:
        """Let the current stream of the tensor's device wait for `store`."""
        if self._host is not None:
            self._host.synchronize()


def single(things: Sequence[Any]) -> Any:
    """The single element of a list; torch's lists date from several devices per process."""
    if len(things) != 1:
        raise ValueError(f"got {len(things)} tensors or lists of them, expected 1")
    return things[0]

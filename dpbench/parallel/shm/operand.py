"""Tensors in the form the algorithms take: 1-D, contiguous, in the memory of the process.

Every problem with a tensor is found when its Operand is made, before the other ranks hear of the
operation: such an error concerns this rank only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dpbench.parallel.shm import memory
from dpbench.parallel.shm.host_copy import HostCopy


class Operand:
    """A tensor of the caller and its flat counterpart, which is the same memory if it can be.

    Attributes:
        flat: 1-D, contiguous, on the CPU.
    """

    __slots__ = ("_device_copy", "_is_copied", "_tensor", "flat")

    def __init__(self, tensor: Tensor, *, read: bool = True) -> None:
        """
        Args:
            tensor: dense, on the CPU or a CUDA device.
            read: whether the tensor's values are needed. If they are written, `store` has to be
                called.

        Raises:
            ValueError: the tensor is of another kind.
        """
        if tensor.layout is not torch.strided or not (tensor.is_cpu or tensor.is_cuda):
            raise ValueError(
                f"shm takes dense CPU and CUDA tensors, got {tensor.layout} on {tensor.device}"
            )
        self._device_copy: HostCopy | None = None
        self._tensor = tensor.detach() if tensor.requires_grad else tensor
        self._is_copied = not (
            tensor.is_cpu
            and tensor.is_contiguous()
            and not tensor.is_conj()
            and not tensor.is_neg()
        )
        if not self._is_copied and not tensor.is_inference():
            self.flat = self._tensor.view(-1)
            if tensor.numel() < 2:  # contiguous with any stride
                self.flat = self.flat.as_strided((tensor.numel(),), (1,))
            return
        # Nothing that collectives keep or pass to another thread may be of inference mode.
        with torch.inference_mode(False):
            if tensor.is_cuda:
                self._device_copy = HostCopy(self._tensor, read=read)
                self.flat = self._device_copy.host
            elif self._is_copied:
                self.flat = torch.empty(tensor.numel(), dtype=tensor.dtype, device="cpu")
                if read:
                    self.flat.view(tensor.shape).copy_(self._tensor)
            else:
                self.flat = (
                    memory.alias(tensor)
                    if tensor.numel()
                    else torch.empty(0, dtype=tensor.dtype, device="cpu")
                )

    def wait(self) -> None:
        """Block until `flat` holds the tensor's values."""
        if self._device_copy is not None:
            self._device_copy.wait()

    def store(self) -> None:
        """Put the values of `flat` into the tensor."""
        if self._is_copied:
            # A tensor made in inference mode may only be written in it.
            with torch.inference_mode(self._tensor.is_inference()):
                if self._device_copy is not None:
                    self._device_copy.send_back()
                else:
                    self._tensor.copy_(self.flat.view(self._tensor.shape))

    def synchronize(self) -> None:
        """Let the current stream of the tensor's device wait for `store`."""
        if self._device_copy is not None:
            self._device_copy.join()


def only(things: Sequence[Any]) -> Any:
    """The single element of a list; torch's lists date from several devices per process."""
    if len(things) != 1:
        raise ValueError(f"got {len(things)} tensors or lists of them, expected 1")
    return things[0]


def split_evenly(whole: Operand, part: Operand, size: int) -> list[Tensor]:
    """Split the operand of all ranks into one equal part per rank, like `part`.

    Raises:
        ValueError: it does not have `size` times the elements of `part`, or has another type.
    """
    all_, one = whole.flat, part.flat
    if (all_.numel(), all_.dtype) != (size * one.numel(), one.dtype):
        raise ValueError(
            f"got {all_.numel()} × {all_.dtype} for all ranks and {one.numel()} × {one.dtype} "
            f"for one, expected {size} times as many elements, of the same type"
        )
    return list(all_.view(size, one.numel()).unbind())


def split_rows(
    operand: Operand, shape: Sequence[int], rows: Sequence[int], size: int
) -> list[Tensor]:
    """Split an operand into some rows of its tensor's first dimension for each rank.

    Args:
        operand: of the tensor.
        shape: the tensor's shape.
        rows: number of rows for each rank; empty for equal parts.
        size: ranks in the group.

    Raises:
        ValueError: the rows do not add up to the tensor's first dimension.
    """
    total = shape[0] if shape else 1
    rows = rows or [total // size] * size
    if len(rows) != size or sum(rows) != total:
        raise ValueError(
            f"got split sizes {list(rows)}, expected one for each of the {size} ranks that add up "
            f"to the {total} rows of the tensor"
        )
    per_row = operand.flat.numel() // total if total else 0
    return list(torch.split(operand.flat, [row * per_row for row in rows]))

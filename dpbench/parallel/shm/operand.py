"""Tensors as the algorithms take them: 1-D, contiguous, in the memory of the process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from dpbench.parallel.shm.member import Steps

T = TypeVar("T")


class Operand:
    """A tensor of the caller and its flat counterpart, which is the same memory if it can be.

    A CUDA tensor is staged through pinned memory: the copy to the host follows what its current
    stream has been given so far, and the copy back is on that stream too.

    Attributes:
        flat: 1-D, contiguous, on the CPU.
        is_direct: whether it is the tensor's own memory, so that nothing is to be moved.
    """

    def __init__(self, tensor: Tensor, *, read: bool = True) -> None:
        """
        Args:
            tensor: strided, on the CPU or a CUDA device.
            read: whether its values are needed; if not, they are to be written only.

        Raises:
            ValueError: for a sparse tensor, or one on another device.
        """
        if tensor.layout != torch.strided:
            raise ValueError(f"backend 'shm' takes dense tensors, got layout {tensor.layout}")
        self._tensor = tensor.detach() if tensor.requires_grad else tensor
        self._stream: torch.cuda.Stream | None = None
        self._event: torch.cuda.Event | None = None
        self.is_direct = False
        if tensor.is_cuda:
            self.flat = self._to_host(read)
        elif tensor.device.type != "cpu":
            raise ValueError(f"backend 'shm' takes CPU and CUDA tensors, got {tensor.device}")
        elif tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg():
            self.is_direct = True
            self.flat = self._tensor
            # A tensor of one element is contiguous with any stride.
            if tensor.dim() != 1 or tensor.stride(0) != 1:
                self.flat = self._tensor.as_strided((tensor.numel(),), (1,))
        else:
            self.flat = torch.empty(tensor.numel(), dtype=tensor.dtype, device="cpu")
            if read:
                self.flat.view(tensor.shape).copy_(self._tensor)

    def load(self) -> Steps[None]:
        """Wait for the values."""
        while self._event is not None and not self._event.query():  # type: ignore[no-untyped-call]
            yield ()

    def store(self) -> None:
        """Put the values of `flat` into the tensor."""
        if self._stream is not None:
            with torch.cuda.stream(self._stream):
                self._tensor.copy_(self.flat.view(self._tensor.shape), non_blocking=True)
                self._event = self._stream.record_event()
        elif not self.is_direct:
            self._tensor.copy_(self.flat.view(self._tensor.shape))

    def synchronize(self) -> None:
        """Let the current stream wait for `store`."""
        if self._stream is not None and self._event is not None:
            torch.cuda.current_stream(self._stream.device).wait_event(self._event)

    def _to_host(self, read: bool) -> Tensor:
        host = torch.empty(self._tensor.numel(), dtype=self._tensor.dtype, pin_memory=True)
        self._stream = torch.cuda.current_stream(self._tensor.device)
        if read:
            host.view(self._tensor.shape).copy_(self._tensor, non_blocking=True)
            self._event = self._stream.record_event()
        return host


def moved(steps: Steps[T], sources: Sequence[Operand], targets: Sequence[Operand]) -> Steps[T]:
    """An operation on operands with what has to be moved before and after it, if anything."""
    for operand in (*sources, *targets):
        if not operand.is_direct:
            return _moved(steps, sources, targets)
    return steps


def _moved(steps: Steps[T], sources: Sequence[Operand], targets: Sequence[Operand]) -> Steps[T]:
    for operand in sources:
        yield from operand.load()
    value = yield from steps
    for operand in targets:
        operand.store()
    return value


def only(things: Sequence[Any]) -> Any:
    """The one thing in a list; torch's lists are for several devices of a process, long gone."""
    if len(things) != 1:
        raise ValueError(f"got {len(things)} tensors or lists of them, expected 1")
    return things[0]


def operand_per_rank(
    tensors: Sequence[Tensor], like: Tensor | None, size: int, *, read: bool = True
) -> list[Operand]:
    """Operands of a list with one tensor for each rank.

    Args:
        tensors: the list.
        like: has the number and type of the elements of each; None if they may differ.
        size: ranks in the group.
        read: as of an operand.

    Raises:
        ValueError: the list is not as described.
    """
    if len(tensors) != size:
        raise ValueError(f"got {len(tensors)} tensors, expected one for each of the {size} ranks")
    for rank, tensor in enumerate(tensors):
        if like is not None and (tensor.numel(), tensor.dtype) != (like.numel(), like.dtype):
            raise ValueError(
                f"the tensor for rank {rank} has {tensor.numel()} × {tensor.dtype}, expected "
                f"{like.numel()} × {like.dtype}"
            )
    return [Operand(tensor, read=read) for tensor in tensors]


def split_evenly(whole: Tensor, part: Tensor, size: int) -> list[Tensor]:
    """A flat tensor as one part for each rank.

    Raises:
        ValueError: it has not `size` times the elements of `part`, or another type.
    """
    if (whole.numel(), whole.dtype) != (size * part.numel(), part.dtype):
        raise ValueError(
            f"got {whole.numel()} × {whole.dtype} for all ranks and {part.numel()} × {part.dtype} "
            f"for one, expected {size} times as many elements, of the same type"
        )
    return list(whole.view(size, part.numel()).unbind())


def split_rows(flat: Tensor, shape: Sequence[int], rows: Sequence[int], size: int) -> list[Tensor]:
    """A flat tensor as some rows of its first dimension for each rank.

    Args:
        flat: its elements.
        shape: of the tensor.
        rows: for each rank; empty for equal parts.
        size: ranks in the group.

    Raises:
        ValueError: the rows are not what the tensor has.
    """
    total = shape[0] if shape else 1
    if not rows:
        if total % size:
            raise ValueError(f"{total} rows cannot be split evenly over {size} ranks")
        rows = [total // size] * size
    if len(rows) != size or sum(rows) != total:
        raise ValueError(
            f"got split sizes {list(rows)}, expected one for each of the {size} ranks that add up "
            f"to the {total} rows of the tensor"
        )
    per_row = flat.numel() // total if total else 0
    return list(torch.split(flat, [row * per_row for row in rows]))

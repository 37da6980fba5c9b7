"""Tensors in the form the algorithms take: 1-D, contiguous, in the memory of the process.

Every problem with a tensor is found when its Operand is made, before the other ranks hear of the
operation: such an error concerns this rank only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from dpbench.parallel.cuda import HostCopy
from dpbench.parallel.flat import is_expanded
from dpbench.parallel.shm import memory
from dpbench.parallel.shm.member import Steps

T = TypeVar("T")

# One check instead of a dozen: dense, on the CPU, neither conjugated nor negated, quantized or
# nested, no subclass with a dispatch of its own, no tensor of inference mode.
_keys = torch._C._dispatch_keys
with torch.inference_mode(False):
    _ORDINARY = _keys(torch.empty(1, device="cpu"))
with torch.inference_mode():
    _INFERENCE = _keys(torch.empty(1, device="cpu"))


class Operand:
    """A tensor of the caller and its flat counterpart, which is the same memory if it can be.

    Attributes:
        flat: 1-D, contiguous, on the CPU, and writable in any mode of torch.
        is_direct: whether `flat` is the tensor's own memory, so that nothing has to be copied.
    """

    __slots__ = ("_device_copy", "_tensor", "flat", "is_direct")

    def __init__(self, tensor: Tensor, *, read: bool = True, write: bool = False) -> None:
        """
        Args:
            tensor: strided, on the CPU or a CUDA device.
            read: whether the tensor's values are needed.
            write: whether the tensor gets new values; `store` then has to be called.

        Raises:
            ValueError: the tensor cannot be read or written as asked.
        """
        self._device_copy: HostCopy | None = None
        self.is_direct = True
        keys = _keys(tensor)
        if keys == _ORDINARY and tensor.is_contiguous():
            self._tensor = tensor.detach() if tensor.requires_grad else tensor
            self.flat = self._tensor
            # A tensor of one element, or of none, is contiguous with any stride.
            if tensor.dim() != 1 or tensor.numel() < 2:
                self.flat = self._tensor.as_strided((tensor.numel(),), (1,))
        elif keys == _INFERENCE and tensor.is_contiguous():
            self._tensor, self.flat = tensor, memory.alias(tensor)
        else:
            _require_supported(tensor)
            if write:
                _require_writable(tensor)
            self.is_direct = False
            self._tensor = tensor.detach()
            self.flat = self._copied(read)

    @property
    def tensor(self) -> Tensor:
        """The caller's tensor, detached."""
        return self._tensor

    @property
    def is_on_device(self) -> bool:
        """Whether the caller's tensor is on a CUDA device."""
        return self._device_copy is not None

    @property
    def awaited(self) -> HostCopy | None:
        """The copy that has to arrive before `flat` holds the values, or None."""
        copy = self._device_copy
        return None if copy is None or copy.has_arrived else copy

    def store(self) -> None:
        """Put the values of `flat` into the tensor."""
        if self._device_copy is not None:
            self._device_copy.send_back()
        elif not self.is_direct:
            # A tensor made in inference mode may only be written in it.
            with torch.inference_mode(self._tensor.is_inference()):
                self._tensor.copy_(self.flat.view(self._tensor.shape))

    def synchronize(self) -> None:
        """Let the current stream of the tensor's device wait for `store`."""
        if self._device_copy is not None:
            self._device_copy.join()

    def _copied(self, read: bool) -> Tensor:
        tensor = self._tensor
        if tensor.is_cuda:
            self._device_copy = HostCopy(tensor, read=read)
            flat = self._device_copy.host
        else:
            flat = torch.empty(tensor.numel(), dtype=tensor.dtype, device="cpu")
            if read:
                flat.view(tensor.shape).copy_(tensor)
        return memory.alias(flat) if flat.is_inference() else flat


def _require_supported(tensor: Tensor) -> None:
    if tensor.layout != torch.strided or tensor.is_nested:
        kind = "a nested tensor" if tensor.is_nested else f"layout {tensor.layout}"
        raise ValueError(f"shm and shm+gloo take dense tensors, got {kind}")
    if not (tensor.is_cuda or tensor.device.type == "cpu"):
        raise ValueError(f"shm and shm+gloo take CPU and CUDA tensors, got {tensor.device}")
    if tensor.is_quantized:
        raise ValueError(
            f"shm and shm+gloo take no quantized tensors, got {tensor.dtype}; send int_repr()"
        )
    if _keys(tensor).has(torch._C.DispatchKey.Python):
        raise ValueError(
            f"shm and shm+gloo take plain tensors, got {type(tensor).__name__}, a subclass with a "
            "dispatch of its own; pass the tensor that it holds"
        )
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        raise ValueError(
            "shm and shm+gloo take plain tensors, got one that torch.func is transforming; "
            "communicate outside the transformed function"
        )


def _require_writable(tensor: Tensor) -> None:
    if is_expanded(tensor):
        raise ValueError(
            f"a tensor of shape {tuple(tensor.shape)} and strides {tensor.stride()} cannot take "
            "results: several of its elements share memory; pass a contiguous copy"
        )
    if tensor._is_zerotensor():
        raise ValueError("a tensor of zeros without memory cannot take results; pass a copy")


def moved(steps: Steps[T], sources: Sequence[Operand], targets: Sequence[Operand]) -> Steps[T]:
    """Wrap an operation with the copies that its operands need before and after it, if any."""
    for operand in (*sources, *targets):
        if not operand.is_direct:
            return _moved(steps, sources, targets)
    return steps


def _moved(steps: Steps[T], sources: Sequence[Operand], targets: Sequence[Operand]) -> Steps[T]:
    for operand in sources:
        while copy := operand.awaited:
            yield copy
    value = yield from steps
    for operand in targets:
        operand.store()
    return value


def apart(
    sources: Sequence[Tensor], targets: Sequence[Tensor], own: tuple[int, int] | None = None
) -> list[Tensor]:
    """The sources, copied where a target would overwrite them before they are read.

    Args:
        sources: flat tensors that an operation reads.
        targets: flat tensors that it writes.
        own: the positions of the source and the target that are this rank's own; these two may
            be the same memory.
    """
    written = [_span(target) for target in targets]
    first, last = min(start for start, _ in written), max(end for _, end in written)
    result = list(sources)
    for number, source in enumerate(sources):
        start, end = read = _span(source)
        if start < last and first < end:
            others = written
            if own is not None and number == own[0] and read == written[own[1]]:
                others = [span for position, span in enumerate(written) if position != own[1]]
            if any(start < to and since < end for since, to in others):
                result[number] = source.clone()
    return result


def _span(flat: Tensor) -> tuple[int, int]:
    start = flat.data_ptr()
    return start, start + flat.nbytes


def only(things: Sequence[Any]) -> Any:
    """The single element of a list; torch's lists date from several devices per process."""
    if len(things) != 1:
        raise ValueError(f"got {len(things)} tensors or lists of them, expected 1")
    return things[0]


def operand_per_rank(
    tensors: Sequence[Tensor],
    like: Tensor | None,
    size: int,
    *,
    read: bool = True,
    write: bool = False,
) -> list[Operand]:
    """Operands for a list with one tensor per rank.

    Args:
        tensors: the list.
        like: gives the number and type of elements in each; None if they may differ.
        size: ranks in the group.
        read, write: as in Operand.

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
    return [Operand(tensor, read=read, write=write) for tensor in tensors]


def require_one_dtype(tensors: Sequence[Tensor], name: str) -> None:
    """
    Raises:
        ValueError: the tensors have several dtypes; `name` is the operation's, for the message.
    """
    if len(dtypes := {tensor.dtype for tensor in tensors}) > 1:
        names = ", ".join(sorted(map(str, dtypes)))
        raise ValueError(f"got tensors of {names} in {name}, expected one type")


def split_evenly(whole: Tensor, part: Tensor, size: int) -> list[Tensor]:
    """Split a flat tensor into one equal part per rank.

    Raises:
        ValueError: it does not have `size` times the elements of `part`, or has another type.
    """
    if (whole.numel(), whole.dtype) != (size * part.numel(), part.dtype):
        raise ValueError(
            f"got {whole.numel()} × {whole.dtype} for all ranks and {part.numel()} × {part.dtype} "
            f"for one, expected {size} times as many elements, of the same type"
        )
    return list(whole.view(size, part.numel()).unbind())


def split_rows(flat: Tensor, shape: Sequence[int], rows: Sequence[int], size: int) -> list[Tensor]:
    """Split a flat tensor into some rows of its first dimension for each rank.

    Args:
        flat: the tensor's elements.
        shape: the tensor's shape.
        rows: number of rows for each rank; empty for equal parts.
        size: ranks in the group.

    Raises:
        ValueError: the rows do not add up to the tensor's first dimension.
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

"""Many tensors in one flat piece of memory: their places, and copying them in and out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

ALIGNMENT_BYTES = 16
"""Alignment of each tensor: vector instructions and CUDA's widest loads are fast from here."""


def packed_bytes(tensors: Iterable[Tensor], alignment_bytes: int = ALIGNMENT_BYTES) -> int:
    """The size of the memory that `views_in` needs for these tensors."""
    return sum(_padded(tensor.nbytes, alignment_bytes) for tensor in tensors)


def views_in(
    memory: Tensor, tensors: Iterable[Tensor], alignment_bytes: int = ALIGNMENT_BYTES
) -> list[Tensor]:
    """Views of `memory`, one after the other, like the tensors.

    Args:
        memory: uint8 and 1-D; at least `packed_bytes` long.
        tensors: any shapes and dtypes. Their memory layout is kept (channels last, for example)
            where it covers its memory without gaps or overlap.
        alignment_bytes: the offset of each view is a multiple of this; it must itself be a multiple
            of each item size.
    """
    views = []
    offset = 0
    for tensor in tensors:
        # Preserves the strides if and only if they have neither gaps nor overlaps.
        strides = torch.empty_like(tensor, device="meta").stride()
        elements = memory[offset : offset + tensor.nbytes].view(tensor.dtype)
        views.append(elements.as_strided(tensor.size(), strides))
        offset += _padded(tensor.nbytes, alignment_bytes)
    return views


def copy_all(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy each source into its target, in as few calls as torch can."""
    if targets:
        # Private by name, but torch's documentation of its foreach family names it.
        torch._foreach_copy_(list(targets), list(sources))


def by_kind(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    """The tensors in groups of one dtype, device and layout, each in the given order."""
    groups: dict[Any, list[Tensor]] = {}
    for tensor in tensors:
        groups.setdefault((tensor.dtype, tensor.device, tensor.layout), []).append(tensor)
    return list(groups.values())


def flattened(tensors: Sequence[Tensor]) -> Tensor:
    """A copy of tensors of one dtype and device, one after the other; differentiable."""
    return torch.cat([_in_memory_order(tensor) for tensor in tensors])


def unflattened(flat: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """The tensors that `flattened` joined, taken from `flat` in the shapes and memory layouts of
    `like`; differentiable."""
    parts = torch.split(flat, [tensor.numel() for tensor in like])
    return [
        part.as_strided(tensor.size(), tensor.stride())
        if _is_permuted(tensor)
        else part.view(tensor.shape)
        for part, tensor in zip(parts, like, strict=True)
    ]


def _in_memory_order(tensor: Tensor) -> Tensor:
    if _is_permuted(tensor):
        return tensor.as_strided((tensor.numel(),), (1,))
    return tensor.reshape(-1)


def _is_permuted(tensor: Tensor) -> bool:
    """Whether the tensor's elements fill its memory, but not in the order of its dimensions."""
    if tensor.is_contiguous():
        return False
    # Preserves the strides if and only if they have neither gaps nor overlaps.
    return torch.empty_like(tensor, device="meta").stride() == tensor.stride()


def is_expanded(tensor: Tensor) -> bool:
    """Whether several elements share memory, so that the tensor cannot take other values."""
    return any(n > 1 and step == 0 for n, step in zip(tensor.shape, tensor.stride(), strict=True))


def _padded(nbytes: int, alignment_bytes: int) -> int:
    return -(-nbytes // alignment_bytes) * alignment_bytes

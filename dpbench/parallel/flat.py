"""Many tensors in one flat tensor, and how tensors lie in memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor


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
    return not tensor.is_contiguous() and is_dense(tensor)


def is_dense(tensor: Tensor) -> bool:
    """Whether the tensor's elements fill its memory without gaps or overlap, in any order."""
    if tensor.is_contiguous():
        return True
    # Preserves the strides if and only if they have neither gaps nor overlaps.
    return torch.empty_like(tensor, device="meta").stride() == tensor.stride()


def is_expanded(tensor: Tensor) -> bool:
    """Whether several elements share memory, so that the tensor cannot take other values."""
    return any(n > 1 and step == 0 for n, step in zip(tensor.shape, tensor.stride(), strict=True))

"""Tensors survive a flat copy with their values, shapes and memory layouts."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dpbench.parallel.flat import (
    flattened,
    unflattened,
)

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.complex64)


def tensor(shape: list[int], dtype: torch.dtype, order: list[int]) -> Tensor:
    """Of any values; its dimensions lie in memory in the given order."""
    count = torch.Size(shape).numel()
    values = torch.arange(count).to(dtype).reshape([shape[dim] for dim in order])
    return values.permute([order.index(dim) for dim in range(len(shape))])


@st.composite
def tensors(draw: st.DrawFn, dtypes: tuple[torch.dtype, ...] = DTYPES) -> Tensor:
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    order = draw(st.permutations(range(len(shape))))
    return tensor(shape, draw(st.sampled_from(dtypes)), order)


@given(st.lists(tensors((torch.float32,)), min_size=1, max_size=6))
def test_a_flat_copy_comes_apart_again(some: list[Tensor]) -> None:
    flat = flattened(some)
    assert flat.numel() == sum(one.numel() for one in some)
    for part, one in zip(unflattened(flat, some), some, strict=True):
        assert torch.equal(part, one)
        assert one.numel() == 0 or strides(part) == strides(one)


def strides(one: Tensor) -> list[int]:
    """Those that matter: a dimension of one element has any."""
    return [stride for stride, size in zip(one.stride(), one.shape, strict=True) if size > 1]

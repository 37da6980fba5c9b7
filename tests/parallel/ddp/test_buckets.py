"""Every gradient is in one bucket, of its own dtype, in the order in which gradients get ready."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dpbench.parallel.ddp.buckets import assign_buckets

DTYPES = (torch.float32, torch.float64, torch.bfloat16)


@st.composite
def assignments(draw: st.DrawFn) -> tuple[list[int], list[Tensor], tuple[int, ...]]:
    kinds = st.tuples(st.integers(0, 40), st.sampled_from(DTYPES))
    parameters = [
        torch.empty(size, dtype=dtype, device="meta")
        for size, dtype in draw(st.lists(kinds, min_size=1, max_size=12))
    ]
    order = draw(st.permutations(range(len(parameters))))
    caps = draw(st.lists(st.integers(1, 300), min_size=1, max_size=3))
    return list(order), parameters, tuple(caps)


@given(assignments())
def test_each_parameter_is_in_one_bucket_of_its_dtype_and_in_order(
    case: tuple[list[int], list[Tensor], tuple[int, ...]],
) -> None:
    order, parameters, caps = case
    buckets = assign_buckets(order, parameters, caps)
    assert sorted(index for bucket in buckets for index in bucket) == sorted(order)
    place = {index: number for number, index in enumerate(order)}
    for bucket in buckets:
        assert len({parameters[index].dtype for index in bucket}) == 1
        assert [place[index] for index in bucket] == sorted(place[index] for index in bucket)


@given(assignments())
def test_a_bucket_is_closed_by_the_parameter_that_reaches_its_cap(
    case: tuple[list[int], list[Tensor], tuple[int, ...]],
) -> None:
    order, parameters, caps = case
    buckets = assign_buckets(order, parameters, caps)
    for dtype in DTYPES:
        own = [b for b in buckets if parameters[b[0]].dtype == dtype]
        for number, bucket in enumerate(own):
            sizes = [parameters[index].nbytes for index in bucket]
            cap = caps[min(number, len(caps) - 1)]  # the last holds for all further buckets
            assert sum(sizes[:-1]) < cap
            assert number == len(own) - 1 or sum(sizes) >= cap

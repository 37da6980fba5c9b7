from __future__ import annotations

import math

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from dpbench.analysis.simulation.buckets import (
    DEFAULT_CAP_MB,
    DEFAULT_FIRST_CAP_MB,
    MEBI,
    caps_bytes,
    into_buckets,
)
from dpbench.parallel.ddp.buckets import BucketCaps, assign_buckets
from dpbench.traits import BUCKETED
from tests.analysis.simulation.traces import step


def test_a_bucket_is_closed_by_the_gradient_that_fills_it() -> None:
    trace = step([1.0, 2.0, 3.0, 4.0, 5.0], [3, 4, 12, 1, 1])
    found = into_buckets(trace, cap_bytes=10, first_cap_bytes=5)
    assert [(b.ready_seconds, b.nbytes) for b in found] == [(2.0, 7), (3.0, 12), (5.0, 2)]


def test_each_dtype_has_buckets_and_a_first_cap_of_its_own() -> None:
    names = ("float32", "bfloat16", "float32", "bfloat16")
    trace = step([1.0, 2.0, 3.0, 4.0], [4, 2, 4, 2], gradient_dtypes=names)
    found = into_buckets(trace, cap_bytes=100, first_cap_bytes=4)
    assert [(b.ready_seconds, b.nbytes) for b in found] == [(1.0, 4), (4.0, 4), (3.0, 4)]


def test_an_infinite_cap_makes_one_bucket() -> None:
    [bucket] = into_buckets(step([1.0, 2.0], [5, 7]), cap_bytes=caps_bytes(math.inf)[0])
    assert (bucket.ready_seconds, bucket.nbytes) == (2.0, 12)


@pytest.mark.parametrize("cap", [0.0, -1.0, math.nan])
def test_a_cap_that_is_not_above_zero_is_refused(cap: float) -> None:
    with pytest.raises(ValueError, match="more than 0"):
        into_buckets(step([1.0]), cap_bytes=cap)


@given(
    st.lists(st.tuples(st.integers(1, 40), st.booleans()), min_size=1, max_size=30),
    st.integers(1, 200),
    st.integers(1, 200),
)
def test_they_are_the_buckets_of_our_ddp(
    gradients: list[tuple[int, bool]], first: int, cap: int
) -> None:
    dtypes = [torch.float64 if wide else torch.float32 for _, wide in gradients]
    parameters = [
        nn.Parameter(torch.empty(count, dtype=dtype, device="meta"))
        for (count, _), dtype in zip(gradients, dtypes, strict=True)
    ]
    trace = step(
        [float(i) for i in range(len(parameters))],
        [parameter.nbytes for parameter in parameters],
        gradient_dtypes=tuple(map(str, dtypes)),
    )
    real = assign_buckets(range(len(parameters)), parameters, BucketCaps((first, cap)))
    found = into_buckets(trace, cap_bytes=cap, first_cap_bytes=first)
    assert [(b.ready_seconds, b.nbytes) for b in found] == [
        (float(max(indices)), sum(parameters[i].nbytes for i in indices)) for indices in real
    ]


@pytest.mark.parametrize("cap_mb", [None, 0.5, 3.0])
def test_caps_are_those_of_our_ddp(cap_mb: float | None) -> None:
    cap, first = caps_bytes(cap_mb)
    real = BucketCaps.chosen(cap_mb, None)
    assert (real.of(0), real.of(1)) == (cap if first is None else first, cap)


def test_the_default_caps_are_those_of_torch() -> None:
    assert DEFAULT_CAP_MB == torch.nn.parallel.distributed._DEFAULT_BUCKET_CAP_MB
    assert DEFAULT_FIRST_CAP_MB * MEBI == dist._DEFAULT_FIRST_BUCKET_BYTES


def test_the_implementations_with_buckets_are_known() -> None:
    assert BUCKETED == ("ddp", "torch-ddp", "torch-ddp-static", "torch-replicate")

"""Gradients in buckets, and what a cap on their size does to a step."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from dpbench.analysis.simulation.buckets import (
    CAPS_MB,
    DEFAULT_CAP_MB,
    DEFAULT_FIRST_CAP_MB,
    MEBI,
    Bucket,
    caps_bytes,
    ideal_buckets,
    into_buckets,
    simulate_cap,
    sweep_caps,
)
from dpbench.analysis.simulation.overlap import simulate
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


BACKWARD = 0.06
BYTES = 100e6
LATENCY = 30e-6


def exposed(count: int, bytes_per_second: float) -> float:
    """Of equal buckets that get ready evenly."""
    ready = [BACKWARD * (k + 1) / count for k in range(count)]
    trace = step(ready)
    buckets = [Bucket(ready_seconds=r, nbytes=round(BYTES / count)) for r in ready]
    found = simulate(trace, buckets, lambda nbytes: LATENCY + nbytes / bytes_per_second)
    return float(found.exposed_seconds)


@pytest.mark.parametrize(
    ("bytes_per_second", "count", "seconds"), [(2.5e9, 667, 90.0e-6), (1.25e9, 45, 22.683e-3)]
)
def test_the_ideal_number_of_buckets(bytes_per_second: float, count: int, seconds: float) -> None:
    found = ideal_buckets(
        total_bytes=BYTES,
        backward_seconds=BACKWARD,
        latency_seconds=LATENCY,
        bytes_per_second=bytes_per_second,
    )
    assert round(found.count) == count
    assert found.exposed_seconds == pytest.approx(seconds, rel=1e-3)
    near = [exposed(n, bytes_per_second) for n in range(max(1, count - 15), count + 16, 5)]
    assert min(near) == pytest.approx(found.exposed_seconds, rel=5e-3)
    assert found.exposed_seconds <= min(near) * (1 + 1e-5)


def test_few_buckets_leave_much_to_the_end() -> None:
    assert exposed(4, 2.5e9) == pytest.approx(10.03e-3, rel=1e-6)
    assert exposed(1, 2.5e9) == pytest.approx(40.03e-3, rel=1e-6)


def test_latency_beyond_the_backward_pass_leaves_one_bucket() -> None:
    found = ideal_buckets(
        total_bytes=1e6, backward_seconds=0.01, latency_seconds=1.0, bytes_per_second=1e9
    )
    assert found.count == 1
    assert found.exposed_seconds == pytest.approx(1.001)


def test_caps_that_make_the_same_buckets_count_once() -> None:
    trace = step(np.linspace(0.1, 1.0, 8).tolist(), [MEBI] * 8)
    run = partial(simulate, cost=lambda nbytes: 0.001 + nbytes / 1e9)
    found = sweep_caps(trace, run)
    assert [result.cap_mb for result in found] == [1.0, 1.5, 3.0, 5.0, 7.0, 10.0]
    assert [len(result.buckets) for result in found] == [8, 4, 3, 2, 2, 1]


def test_a_cap_is_simulated_as_the_implementation_buckets() -> None:
    trace = step(np.linspace(0.1, 1.0, 8).tolist(), [MEBI] * 8)
    run = partial(simulate, cost=lambda nbytes: 0.01)
    assert [b.nbytes // MEBI for b in simulate_cap(trace, None, run).buckets] == [1, 7]
    assert [b.nbytes // MEBI for b in simulate_cap(trace, 3.0, run).buckets] == [3, 3, 2]
    assert len(simulate_cap(trace, math.inf, run).buckets) == 1


def test_caps_rise() -> None:
    assert list(CAPS_MB) == sorted(CAPS_MB)
    assert (CAPS_MB[0], CAPS_MB[-1]) == (1.0, 100.0)

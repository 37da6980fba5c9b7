from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest

from dpbench.analysis.simulation.bucket_sizes import (
    CAPS_MB,
    ideal_buckets,
    simulate_cap,
    sweep_caps,
)
from dpbench.analysis.simulation.buckets import MEBI, Bucket
from dpbench.analysis.simulation.overlap import simulate
from tests.analysis.simulation.traces import step

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

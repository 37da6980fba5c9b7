"""Simulating a step of a very large group, with noise, from one replica's trace."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from time import perf_counter

import numpy as np

from dpbench import units
from dpbench.analysis.projection.simulation import StepTrace, into_buckets, simulate
from dpbench.analysis.projection.stragglers import measured_noise, slowdowns
from tests.benchmarks.figure import Figure

REPLICAS = 10_000
STEPS = 1_000
BUCKETS = 100
BUCKET_BYTES = 2**20
LONGEST_SECONDS = 2.0
RUNS = 5
MOST_GROWTH = 12.0
"""For ten times the replicas: linear, and a fifth for the noise of a shared machine."""


def run() -> Iterator[Figure]:
    _seconds(10)  # imports, caches
    seconds = median(_seconds(REPLICAS) for _ in range(RUNS))
    yield Figure(
        name=f"{REPLICAS:,} replicas × {BUCKETS} buckets × {STEPS:,} noisy steps",
        value=f"{units.seconds(seconds)} (median, n = {RUNS})",
        target=f"under {LONGEST_SECONDS:g} s",
        met=seconds < LONGEST_SECONDS,
    )
    growth = median(_seconds(10 * REPLICAS) / _seconds(REPLICAS) for _ in range(RUNS))
    yield Figure(
        name="the same for ten times the replicas",
        value=f"{growth:.2f} times as long (median, n = {RUNS})",
        target=f"at most {MOST_GROWTH:g} times",
        met=growth < MOST_GROWTH,
    )


def _seconds(replicas: int) -> float:
    """From tables of measured steps to simulated ones."""
    generator = np.random.default_rng(0)
    tables = [np.exp(generator.normal(0, 0.03, (8, 300))) for _ in range(5)]
    trace = _trace()
    buckets = into_buckets(trace, cap_bytes=BUCKET_BYTES)
    assert len(buckets) == BUCKETS
    start = perf_counter()
    noise = measured_noise(tables)
    step = simulate(
        trace,
        buckets,
        lambda nbytes: 1e-4 + nbytes / 1e9,
        lost_share=lambda _: 0.1,
        stretch=lambda _: 1.2,
        slowdown=slowdowns(noise, replicas, STEPS, generator),
    )
    seconds = perf_counter() - start
    assert np.shape(step.step_seconds) == (STEPS,)
    return seconds


def _trace() -> StepTrace:
    return StepTrace(
        forward_seconds=0.1,
        backward_seconds=0.2,
        optimizer_seconds=0.01,
        ready_seconds=tuple(np.linspace(0.102, 0.3, BUCKETS).tolist()),
        gradient_bytes=(BUCKET_BYTES,) * BUCKETS,
    )

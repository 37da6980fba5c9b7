"""A launcher of collectives that starts nothing and answers at once, for tests."""

from __future__ import annotations

import random

from dpbench.launch.collectives import CollectiveOutcome
from dpbench.launch.synthetic import noisy
from dpbench.records.collectives import (
    CollectiveSpec,
    ExchangeTiming,
    OverlapTiming,
    RankCollectives,
    SizeTiming,
)
from dpbench.records.trial import (
    Status,
)

LATENCY_SECONDS = {"gloo": 2e-4, "nccl": 2e-5, "shm": 1e-5, "shm+gloo": 3e-4}
"""Latency α of two ranks; it grows with the hops of a ring, n - 1."""
BYTES_PER_SECOND = {"gloo": 1.5e9, "nccl": 1e11, "shm": 1e10, "shm+gloo": 2e9}
"""Bandwidth B of the ring's 2 (n - 1) ÷ n parts."""
COPY_LATENCY_SECONDS = 1e-6
COPY_BYTES_PER_SECOND = 2e10
COLD = 1.5
"""Factor by which a collective takes longer in a step than in a loop."""
LOST_SHARE = 0.3
STRETCH = 1.5
OUTLASTS = 2.0
HOST = "synthetic"


class SyntheticCollectives:
    """Answers from the cost model; every measurement completes."""

    def unusable_reason(self, spec: CollectiveSpec) -> str | None:
        return None

    def run(self, spec: CollectiveSpec, time_limit_seconds: float) -> CollectiveOutcome:
        ranks = tuple(_collective_rank(spec, rank) for rank in range(spec.group_size))
        return CollectiveOutcome(status=Status.COMPLETED, ranks=ranks)


def seconds(spec: CollectiveSpec, nbytes: int) -> float:
    """Seconds of one call in the model."""
    hops = spec.group_size - 1
    parts = 1 if spec.collective == "broadcast" else hops / spec.group_size
    if spec.collective == "all_reduce":
        hops, parts = 2 * hops, 2 * parts
    rate = BYTES_PER_SECOND[spec.backend]
    return LATENCY_SECONDS[spec.backend] / 2 * hops + parts * nbytes / rate


def copy_seconds(nbytes: int) -> float:
    return COPY_LATENCY_SECONDS + nbytes / COPY_BYTES_PER_SECOND


def _collective_rank(spec: CollectiveSpec, rank: int) -> RankCollectives:
    noise = random.Random(f"{spec.collective_id}/{rank}")

    def samples(value: float) -> tuple[float, ...]:
        return tuple(noisy(value, noise) for _ in range(spec.samples))

    def timing(nbytes: int, value: float) -> SizeTiming:
        return SizeTiming(nbytes=nbytes, calls_per_sample=1, seconds=samples(value))

    def overlap(nbytes: int) -> OverlapTiming:
        alone = seconds(spec, nbytes)
        stretched = STRETCH * alone
        compute = OUTLASTS * stretched
        return OverlapTiming(
            nbytes=nbytes,
            compute_seconds=samples(compute),
            compute_with_collective_seconds=samples(compute + LOST_SHARE * stretched),
            collective_seconds=samples(alone),
            collective_with_compute_seconds=samples(stretched),
        )

    def exchange(nbytes: int) -> ExchangeTiming:
        return ExchangeTiming(
            nbytes=nbytes,
            copy_seconds=samples(COLD * copy_seconds(nbytes)),
            collective_seconds=samples(COLD * seconds(spec, nbytes)),
        )

    return RankCollectives(
        rank=rank,
        pid=0,
        device=spec.devices[rank],
        host=HOST,
        timings=tuple(timing(size, seconds(spec, size)) for size in spec.sizes_bytes),
        copies=tuple(timing(size, copy_seconds(size)) for size in spec.sizes_bytes),
        overlaps=tuple(map(overlap, spec.overlap_sizes_bytes)),
        exchanges=tuple(map(exchange, spec.exchange_sizes_bytes)),
    )

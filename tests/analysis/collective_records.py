"""Records of collectives with times that are known, and networks with round figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dpbench.records.collectives import (
    CollectiveRecord,
    CollectiveSpec,
    RankCollectives,
    SizeTiming,
)
from dpbench.records.trial import Status

SIZES = tuple(4**power for power in range(1, 15))
"""4 B to 256 MiB."""

Seconds = Callable[[int], float]


def affine(latency_seconds: float, bytes_per_second: float) -> Seconds:
    return lambda nbytes: latency_seconds + nbytes / bytes_per_second


def collective_spec(**changes: Any) -> CollectiveSpec:
    """float32 all-reduces on gloo, two ranks; `devices` follows `group_size`."""
    values: dict[str, Any] = {
        "collective": "all_reduce",
        "backend": "gloo",
        "group_size": 2,
        "sizes_bytes": SIZES,
        "threads_per_replica": 1,
    }
    values.update(changes)
    values.setdefault("devices", ("cpu",) * values["group_size"])
    return CollectiveSpec(**values)


def collective_record(
    spec: CollectiveSpec,
    seconds: Seconds,
    *,
    samples: Sequence[float] = (1.0, 1.0, 1.0),
    hosts: Sequence[str] = ("a",),
) -> CollectiveRecord:
    """Completed; each sample takes so many times `seconds(nbytes)` on every rank."""
    ranks = tuple(
        RankCollectives(
            rank=rank,
            pid=100 + rank,
            device=spec.devices[rank],
            host=hosts[rank % len(hosts)],
            timings=tuple(
                SizeTiming(
                    nbytes=nbytes,
                    calls_per_sample=1,
                    seconds=tuple(factor * seconds(nbytes) for factor in samples),
                    largest_error=1e-7,
                )
                for nbytes in spec.sizes_bytes
            ),
        )
        for rank in range(spec.group_size)
    )
    return CollectiveRecord(
        collective=spec,
        environment_id="e0",
        started_utc="2026-01-01T00:00:00Z",
        duration_seconds=1.0,
        status=Status.COMPLETED,
        ranks=ranks,
    )


def failed_record(spec: CollectiveSpec, status: Status, reason: str) -> CollectiveRecord:
    return CollectiveRecord(
        collective=spec,
        environment_id="e0",
        started_utc="2026-01-01T00:00:00Z",
        duration_seconds=1.0,
        status=status,
        reason=reason,
    )


def sample_collectives(*, spread: float = 0.02) -> list[CollectiveRecord]:
    """Three repetitions on gloo and shm at 2 and 4 ranks; nccl is skipped."""
    records = [
        collective_record(
            collective_spec(
                backend=backend,
                group_size=group_size,
                repetition=repetition,
            ),
            lambda size, t=latency * factor, b=bandwidth / factor: t + size / b,
        )
        for repetition, factor in enumerate((1 - spread, 1.0, 1 + spread))
        for backend, latency, bandwidth in (("gloo", 100e-6, 1.5e9), ("shm", 10e-6, 8e9))
        for group_size in (2, 4)
    ]
    reason = "nccl needs a CUDA device a rank; none is visible"
    return [*records, failed_record(collective_spec(backend="nccl"), Status.SKIPPED, reason)]

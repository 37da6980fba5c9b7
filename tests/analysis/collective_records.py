"""Records of collectives with times that are known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dpbench.records.collectives import CollectiveRecord, SizeTiming
from dpbench.records.trial import Status
from dpbench.specs.collective import CollectiveSpec

SIZES = tuple(4**power for power in range(1, 15))
"""4 B to 256 MiB."""


def collective_spec(**changes: Any) -> CollectiveSpec:
    """float32 all-reduces on gloo, two ranks; `devices` follows `group_size`."""
    values: dict[str, Any] = {
        "collective": "all_reduce",
        "backend": "gloo",
        "group_size": 2,
        "sizes_bytes": SIZES,
        "threads": 1,
    }
    values.update(changes)
    values.setdefault("devices", ("cpu",) * values["group_size"])
    return CollectiveSpec(**values)


def record_of(spec: CollectiveSpec, **changes: Any) -> CollectiveRecord:
    values: dict[str, Any] = {
        "environment_ids": ("e0",),
        "started_utc": "2026-01-01T00:00:00Z",
        "duration_seconds": 1.0,
        "status": Status.COMPLETED,
    }
    return CollectiveRecord(spec=spec, **{**values, **changes})


def collective_record(
    spec: CollectiveSpec, seconds: Callable[[int], float] = lambda _: 1e-3
) -> CollectiveRecord:
    """Completed; each of three samples takes `seconds(nbytes)` on every rank."""

    def timing(nbytes: int) -> SizeTiming:
        took = (seconds(nbytes),) * 3
        return SizeTiming(nbytes=nbytes, seconds=took, largest_error=1e-7)

    timings = tuple(map(timing, spec.sizes_bytes))
    return record_of(spec, ranks=(timings,) * spec.group_size)


def failed_record(spec: CollectiveSpec, status: Status, reason: str) -> CollectiveRecord:
    return record_of(spec, status=status, reason=reason)


def sample_collectives(*, spread: float = 0.02) -> list[CollectiveRecord]:
    """Three repetitions on gloo and shm at 2 and 4 ranks; those on nccl failed."""
    records = [
        collective_record(
            collective_spec(backend=backend, group_size=group_size, repetition=repetition),
            lambda size, t=latency * factor, b=bandwidth / factor: t + size / b,
        )
        for repetition, factor in enumerate((1 - spread, 1.0, 1 + spread))
        for backend, latency, bandwidth in (("gloo", 100e-6, 1.5e9), ("shm", 10e-6, 8e9))
        for group_size in (2, 4)
    ]
    return [*records, failed_record(collective_spec(backend="nccl"), Status.FAILED, "rank 1 died")]

"""Which gradients share a collective, and when each collective can start."""

from __future__ import annotations

from dataclasses import dataclass

from dpbench.analysis.simulation.trace import StepTrace

MEBI = 1024**2
DEFAULT_CAP_MB = 25.0
DEFAULT_FIRST_CAP_MB = 1.0
"""What torch's DistributedDataParallel and dpbench's take on every backend unless they are told
otherwise: a small first bucket lets communication start early. Any cap that is given holds for
the first bucket too."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bucket:
    """Gradients that one all-reduce carries."""

    ready_seconds: float
    """When the last of them is ready, in seconds of computing since the step began."""
    nbytes: int


def caps_bytes(bucket_cap_mb: float | None) -> tuple[float, float | None]:
    """(cap, cap of the first bucket) of a trial's `bucket_cap_mb`; infinity makes one bucket."""
    if bucket_cap_mb is None:
        return DEFAULT_CAP_MB * MEBI, DEFAULT_FIRST_CAP_MB * MEBI
    return bucket_cap_mb * MEBI, None


def into_buckets(
    trace: StepTrace, *, cap_bytes: float, first_cap_bytes: float | None = None
) -> tuple[Bucket, ...]:
    """Buckets as DistributedDataParallel makes them from its second step on.

    Gradients are taken in the order in which they get ready; a bucket is closed by the one that
    fills it to its cap or beyond. Each dtype has buckets of its own, the first of which closes at
    `first_cap_bytes` (None: at `cap_bytes` too). Those still open in the end come last.

    Raises:
        ValueError: a cap that is not above zero.
    """
    first_cap = cap_bytes if first_cap_bytes is None else first_cap_bytes
    if not (cap_bytes > 0 and first_cap > 0):
        raise ValueError(f"caps of {cap_bytes} and {first_cap} bytes: expected more than 0")
    closed: list[Bucket] = []
    open_: dict[str, Bucket] = {}
    caps: dict[str, float] = {}
    dtypes = trace.gradient_dtypes or ("",) * len(trace.gradient_bytes)
    for ready, nbytes, dtype in zip(trace.ready_seconds, trace.gradient_bytes, dtypes, strict=True):
        before = open_[dtype].nbytes if dtype in open_ else 0
        open_[dtype] = Bucket(ready_seconds=ready, nbytes=before + nbytes)
        if open_[dtype].nbytes >= caps.get(dtype, first_cap):
            closed.append(open_.pop(dtype))
            caps[dtype] = cap_bytes
    return (*closed, *open_.values())

"""Gradient buckets: which gradients share a collective, and the effect of a cap on their size.

Many small buckets pay latency many times; with few large ones the last communication has no
computation to hide behind.

Closed forms, for S bytes that get ready evenly over a backward pass of T_b seconds, in K equal
buckets that cost alpha + s/B each; t = S/B, and the remaining backward pass is T_b - t:

    K* = (T_b - t) / alpha     exposed alpha (1 + t / (T_b - t))        computing hides it
    K* = sqrt(T_b / alpha)     exposed K* alpha + t - T_b + T_b / K*    bound by communication

The second holds where its K* is the larger one, and always if t >= T_b.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from dpbench.analysis.simulation.trace import StepTrace

MEBI = 1024**2
DEFAULT_CAP_MB = 25.0
DEFAULT_FIRST_CAP_MB = 1.0
"""Default cap of the first bucket in torch's DistributedDataParallel and dpbench's, on every
backend: a small first bucket lets communication start early. A given cap also holds for the first
bucket."""

CAPS_MB = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0, 10.0, 15.0, 25.0, 35.0, 50.0, 70.0, 100.0)
ONE_BUCKET = math.inf


@dataclass(frozen=True, kw_only=True, slots=True)
class Bucket:
    """Gradients that one all-reduce carries."""

    ready_seconds: float
    """Time at which the last of them is ready, in seconds of computing since the step began."""
    nbytes: int


def caps_bytes(cap_mb: float | None) -> tuple[float, float | None]:
    """(cap, cap of the first bucket) for a bucket size; None for the implementation's default,
    infinity for one bucket."""
    if cap_mb is None:
        return DEFAULT_CAP_MB * MEBI, DEFAULT_FIRST_CAP_MB * MEBI
    return cap_mb * MEBI, None


def into_buckets(
    trace: StepTrace, *, cap_bytes: float, first_cap_bytes: float | None = None
) -> tuple[Bucket, ...]:
    """Buckets as DistributedDataParallel makes them from its second step on.

    Gradients are taken in the order in which they get ready; a bucket is closed by the one that
    fills it to its cap or beyond. Each dtype has buckets of its own, the first of which closes at
    `first_cap_bytes` (None: at `cap_bytes` too). Those still open in the end come last.

    Raises:
        ValueError: a cap is not above zero.
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


S = TypeVar("S")
Simulate = Callable[[StepTrace, Sequence[Bucket]], S]
"""Simulates a step with these buckets: overlap.simulate with all but the first two arguments given,
or a function that returns more."""


@dataclass(frozen=True, kw_only=True)
class CapResult(Generic[S]):
    """Result for a cap."""

    cap_mb: float | None
    """The cap; None means the implementation's default; infinity means one bucket."""
    buckets: tuple[Bucket, ...]
    step: S


def simulate_cap(trace: StepTrace, cap_mb: float | None, simulate: Simulate[S]) -> CapResult[S]:
    cap, first = caps_bytes(cap_mb)
    buckets = into_buckets(trace, cap_bytes=cap, first_cap_bytes=first)
    return CapResult(cap_mb=cap_mb, buckets=buckets, step=simulate(trace, buckets))


def sweep_caps(
    trace: StepTrace, simulate: Simulate[S], caps_mb: Sequence[float] = (*CAPS_MB, ONE_BUCKET)
) -> tuple[CapResult[S], ...]:
    """A result for each cap that makes other buckets than those before it."""
    found: dict[tuple[Bucket, ...], CapResult[S]] = {}
    for cap in caps_mb:
        result = simulate_cap(trace, cap, simulate)
        found.setdefault(result.buckets, result)
    return tuple(found.values())


@dataclass(frozen=True, kw_only=True, slots=True)
class IdealBuckets:
    """The best number of equal buckets, as a number that need not be whole."""

    count: float
    exposed_seconds: float


def ideal_buckets(
    *, total_bytes: float, backward_seconds: float, latency_seconds: float, bytes_per_second: float
) -> IdealBuckets:
    """The closed forms above, with one bucket at least; all arguments are above zero."""
    transfer = total_bytes / bytes_per_second
    slack = backward_seconds - transfer
    count = max(1.0, math.sqrt(backward_seconds / latency_seconds))
    if slack > latency_seconds * count:
        return IdealBuckets(
            count=slack / latency_seconds,
            exposed_seconds=latency_seconds * (1 + transfer / slack),
        )
    exposed = count * latency_seconds - slack + backward_seconds / count
    return IdealBuckets(count=count, exposed_seconds=exposed)

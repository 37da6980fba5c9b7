"""A step of DistributedDataParallel: gradients are averaged bucket by bucket during backward.

Collectives follow each other on one stream, each as soon as its bucket is ready (max-plus):

    s_k = max(r_k, e_{k-1});   e_k = s_k + c_k;   step = max(T_c, e_K) + T_o

with readiness r_k, cost c_k, the end T_c of the backward pass and the optimizer's time T_o. In
closed form e_K = max_j (r_j + sum over k >= j of c_k).

Collectives take time from computing, where the same cores or memory serve both. While one is
under way computing advances at the rate 1 - φ (φ, the lost share) and the collective takes
`stretch` times as long; once the backward pass has ended it goes on at its plain speed. So r_k and
T_c are read on a clock w that counts computing, not time:

    s_k = e_{k-1} + max(0, r_k - w)             computing alone until the bucket is ready
    w' = max(w, r_k)
    o = min(c_k · stretch, (T_c - w') / (1 - φ))    seconds in which both are under way
    e_k = s_k + o + (c_k - o / stretch)
    w_k = w' + (1 - φ) · o

and the step ends at e_K + (T_c - w_K) + T_o. With φ = 0 and stretch = 1 this is the above.

If a bucket must be filled first, that is computing too: it delays r_k, and all later computing, by
as much.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dpbench.analysis.simulation.buckets import Bucket
from dpbench.analysis.simulation.trace import Floats, StepTrace

Cost = Callable[[float], float]
"""Seconds of one collective from its bytes, at a fixed group size."""
PerBytes = Callable[[float], float]
Seconds = float | Floats
"""A number, or an array of one value per simulated step."""

SLOWEST_RATE = 0.05
"""Slowest rate of computing beside a collective that determines how long its last microseconds can
take: without this limit, noise in a lost share of about 1 would decide whether a whole collective
is stretched."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BucketTimes:
    """Seconds since the step began."""

    nbytes: int
    ready_seconds: Seconds
    """Time at which the bucket is ready if no earlier collective took time from computing."""
    start_seconds: Seconds
    end_seconds: Seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulatedStep:
    """An optimizer step; arrays if simulated for an array of slowdowns."""

    step_seconds: Seconds
    compute_seconds: Seconds
    """Seconds without any communication."""
    communication_seconds: float
    """Seconds of all collectives, if nothing ran beside them."""
    timeline: tuple[BucketTimes, ...]

    @property
    def exposed_seconds(self) -> Seconds:
        """Seconds that communication adds to the step: filling buckets, waiting, slower
        computing."""
        return self.step_seconds - self.compute_seconds


def simulate(
    trace: StepTrace,
    buckets: Sequence[Bucket],
    cost: Cost,
    *,
    lost_share: PerBytes | None = None,
    stretch: PerBytes | None = None,
    fill: Cost | None = None,
    broadcast: Cost | None = None,
    accumulation_steps: int = 1,
    slowdown: Seconds = 1.0,
    tail_slowdown: Seconds | None = None,
) -> SimulatedStep:
    """One optimizer step of the slowest replica.

    Args:
        trace: of one micro-step, without communication.
        buckets: in the order in which they are reduced.
        cost: seconds of an all-reduce.
        lost_share: φ by size; perfect overlap without it. It is above 1 where a collective costs
            computing more than its own time; below 0 it is noise, and counts as 0.
        stretch: by size; 1 without it.
        fill: seconds to copy gradients into a bucket, if the trace does not include that.
        broadcast: seconds to send the module's buffers before the forward pass; by default those of
            an all-reduce.
        accumulation_steps: micro-steps; only the last one communicates.
        slowdown: factor on all computing; every value of an array is a step of its own.
        tail_slowdown: factor after the last gradient of a backward pass; None means as the rest.

    Raises:
        ValueError: a cost, stretch or number of steps makes no sense.
    """
    if accumulation_steps < 1:
        raise ValueError(f"{accumulation_steps} accumulation steps: expected 1 or more")
    factor = np.asarray(slowdown, dtype=np.float64)
    tail = trace.tail_seconds * (factor if tail_slowdown is None else tail_slowdown)
    alone = trace.ready_seconds[-1] * factor + tail
    optimizer = trace.optimizer_seconds * factor
    filled = np.cumsum([_cost(fill, b.nbytes) if fill else 0.0 for b in buckets])
    pass_seconds = alone + (filled[-1] if buckets else 0.0)
    sent = _cost(broadcast or cost, trace.buffer_bytes)
    begin = (accumulation_steps - 1) * alone + sent
    computed, end = np.zeros_like(factor), begin
    communication, timeline = sent, []
    for bucket, filling in zip(buckets, filled, strict=True):
        seconds = _cost(cost, bucket.nbytes)
        rate, longer = _rate(lost_share, bucket.nbytes), _stretch(stretch, bucket.nbytes)
        ready = bucket.ready_seconds * factor + filling
        start = end + np.maximum(0.0, ready - computed)
        computed = np.maximum(computed, ready)
        both = _both(seconds * longer, pass_seconds - computed, rate)
        end = start + both + (seconds - both / longer)
        computed = computed + rate * both
        communication += seconds
        timeline.append(_times(bucket.nbytes, begin + ready, start, end))
    return SimulatedStep(
        step_seconds=_plain(end + (pass_seconds - computed) + optimizer),
        compute_seconds=_plain(accumulation_steps * alone + optimizer),
        communication_seconds=communication,
        timeline=tuple(timeline),
    )


def _both(longest: float, computing_left: Floats, rate: float) -> Floats:
    """Seconds in which both run, for a collective that takes `longest` beside computing."""
    left = np.maximum(0.0, computing_left)  # below 0 only by rounding
    return np.minimum(longest, left / max(rate, SLOWEST_RATE))


def _cost(cost: Cost, nbytes: int) -> float:
    seconds = cost(nbytes) if nbytes else 0.0
    if not (np.isfinite(seconds) and seconds >= 0):
        raise ValueError(f"{seconds} s for a collective of {nbytes} bytes: expected 0 or more")
    return seconds


def _rate(lost_share: PerBytes | None, nbytes: int) -> float:
    """Rate of computing while a collective is running."""
    return 1 - (max(0.0, lost_share(nbytes)) if lost_share else 0.0)


def _stretch(stretch: PerBytes | None, nbytes: int) -> float:
    longer = stretch(nbytes) if stretch else 1.0
    if not longer > 0:
        raise ValueError(f"a stretch of {longer} for {nbytes} bytes: expected above 0")
    return longer


def _times(nbytes: int, ready: Floats, start: Floats, end: Floats) -> BucketTimes:
    return BucketTimes(
        nbytes=nbytes,
        ready_seconds=_plain(ready),
        start_seconds=_plain(start),
        end_seconds=_plain(end),
    )


def _plain(values: Floats) -> Seconds:
    return values if values.ndim else float(values)

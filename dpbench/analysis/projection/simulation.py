"""A training step as a simulation: a trace without communication, its gradients in buckets, and the
collectives that average them while computing goes on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dpbench.analysis.estimate import Estimate, Floats, LogMean
from dpbench.records.trial import GradientTrace
from dpbench.specs.traits import DEFAULT_CAP_MB, DEFAULT_FIRST_CAP_MB
from dpbench.units import MEBI

ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTrace:
    """Seconds since the step began, typical of the traced steps (medians over steps).

    Gradients are in the order in which they became ready.
    """

    forward_seconds: float
    """Seconds until the backward pass starts."""
    backward_seconds: float
    """Length of the backward pass."""
    optimizer_seconds: float
    """Seconds from the end of the backward pass to the end of the step."""
    ready_seconds: tuple[float, ...]
    gradient_bytes: tuple[int, ...]
    gradient_dtypes: tuple[str, ...] = ()
    """Dtype of each gradient, as a bucket holds one dtype only; empty if all are alike."""
    buffer_bytes: int = 0
    sample_size: int = 1
    """Number of traced steps behind it."""

    def __post_init__(self) -> None:
        times = (self.forward_seconds, self.backward_seconds, self.optimizer_seconds)
        if not all(np.isfinite(times)) or min(times) < 0:
            raise ValueError(f"phases of {times} s: expected numbers that are not negative")
        if len(self.ready_seconds) != len(self.gradient_bytes) or not self.gradient_bytes:
            raise ValueError("expected a readiness for every gradient, and a gradient at least")
        if len(self.gradient_dtypes) not in (0, len(self.gradient_bytes)):
            raise ValueError("expected the dtype of every gradient, or of none")
        if list(self.ready_seconds) != sorted(self.ready_seconds):
            raise ValueError("gradients must stand in the order in which they get ready")
        if self.ready_seconds[-1] > self.backward_end_seconds * (1 + ROUNDING):
            raise ValueError("a gradient is ready after the end of the backward pass")

    @property
    def backward_end_seconds(self) -> float:
        return self.forward_seconds + self.backward_seconds

    @property
    def step_seconds(self) -> float:
        return self.backward_end_seconds + self.optimizer_seconds

    @property
    def tail_seconds(self) -> float:
        """Seconds from the last gradient to the end of the backward pass: mostly the host's
        time."""
        return max(0.0, self.backward_end_seconds - self.ready_seconds[-1])  # 0.0 for rounding

    @property
    def total_bytes(self) -> int:
        return sum(self.gradient_bytes)

    def scaled(self, factor: float) -> StepTrace:
        """The same step on a replica that takes `factor` times as long for everything."""
        return replace(
            self,
            forward_seconds=self.forward_seconds * factor,
            backward_seconds=self.backward_seconds * factor,
            optimizer_seconds=self.optimizer_seconds * factor,
            ready_seconds=tuple(seconds * factor for seconds in self.ready_seconds),
        )


def step_trace(traces: Sequence[GradientTrace]) -> StepTrace:
    """Medians over all traced steps, of all repetitions together.

    Raises:
        ValueError: there is no trace, or traces have different gradients.
    """
    if not traces:
        raise ValueError("expected a trace at least")
    first = traces[0]
    gradients = (first.parameters, first.gradient_bytes, first.gradient_dtypes)
    for other in traces[1:]:
        if (other.parameters, other.gradient_bytes, other.gradient_dtypes) != gradients:
            raise ValueError("expected traces of the same gradients")
    ready = np.median(np.concatenate([np.asarray(t.ready_seconds) for t in traces]), axis=0)
    order = np.argsort(ready, kind="stable").tolist()
    starts = _median([trace.backward_start_seconds for trace in traces])
    ends = _median([trace.backward_end_seconds for trace in traces])
    return StepTrace(
        forward_seconds=starts,
        backward_seconds=ends - starts,
        optimizer_seconds=_median([trace.step_seconds for trace in traces]) - ends,
        ready_seconds=tuple(ready[order].tolist()),
        gradient_bytes=tuple(first.gradient_bytes[i] for i in order),
        gradient_dtypes=tuple(first.gradient_dtypes[i] for i in order),
        buffer_bytes=first.buffer_bytes,
        sample_size=sum(len(trace.step_seconds) for trace in traces),
    )


def tracing_overhead(traces: Sequence[GradientTrace]) -> Estimate:
    """Seconds of a traced step ÷ those of the untraced one beside it, as a geometric mean.

    The interval is over repetitions; with a single one, over its pairs of steps.

    Raises:
        ValueError: there is no trace, or one lacks an untraced step for every traced one.
    """
    if not traces:
        raise ValueError("expected a trace at least")
    means = [
        LogMean.of_runs(
            [a / b for a, b in zip(trace.step_seconds, trace.untraced_step_seconds, strict=True)]
        )
        for trace in traces
    ]
    if len(means) > 1:
        return LogMean.of_runs([mean.value for mean in means]).estimate("×")
    single = means[0].sample_size == 1
    return replace(means[0], basis="single value" if single else "step batches").estimate("×")


def _median(steps: Sequence[Sequence[float]]) -> float:
    return float(np.median(np.concatenate([np.asarray(one) for one in steps])))


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
class SimulatedStep:
    """An optimizer step; arrays if simulated for an array of slowdowns."""

    step_seconds: Seconds
    compute_seconds: Seconds
    """Seconds without any communication."""

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
    computed = np.zeros_like(factor)
    end = (accumulation_steps - 1) * alone + _cost(broadcast or cost, trace.buffer_bytes)
    for bucket, filling in zip(buckets, filled, strict=True):
        seconds = _cost(cost, bucket.nbytes)
        rate, longer = _rate(lost_share, bucket.nbytes), _stretch(stretch, bucket.nbytes)
        ready = bucket.ready_seconds * factor + filling
        start = end + np.maximum(0.0, ready - computed)
        computed = np.maximum(computed, ready)
        both = _both(seconds * longer, pass_seconds - computed, rate)
        end = start + both + (seconds - both / longer)
        computed = computed + rate * both
    return SimulatedStep(
        step_seconds=_plain(end + (pass_seconds - computed) + optimizer),
        compute_seconds=_plain(accumulation_steps * alone + optimizer),
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


def _plain(values: Floats) -> Seconds:
    return values if values.ndim else float(values)

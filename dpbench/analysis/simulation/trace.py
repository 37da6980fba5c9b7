"""One step of one replica without communication: the starting point of the simulation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dpbench.analysis.estimate import Estimate, LogMean
from dpbench.records import GradientTrace

Floats = NDArray[np.float64]

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


def single_steps(trace: GradientTrace) -> list[StepTrace]:
    """Every traced step as a trace of its own."""
    steps = zip(
        trace.ready_seconds,
        trace.backward_start_seconds,
        trace.backward_end_seconds,
        trace.step_seconds,
        strict=True,
    )
    return [
        step_trace(
            [
                replace(
                    trace,
                    ready_seconds=(ready,),
                    backward_start_seconds=(start,),
                    backward_end_seconds=(end,),
                    step_seconds=(step,),
                )
            ]
        )
        for ready, start, end, step in steps
    ]


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

"""A training step as a simulation: computing as traced, and the buckets of gradients that are
averaged while the backward pass goes on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dpbench.analysis.estimate import Floats
from dpbench.errors import UsageError
from dpbench.records.trial import GradientTrace
from dpbench.specs.traits import DEFAULT_CAP_MB, DEFAULT_FIRST_CAP_MB
from dpbench.units import MEBI


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTrace:
    """Seconds since a step of one replica began, typical of the traced steps."""

    ready_seconds: Floats
    """When each gradient is ready, ascending."""
    gradient_bytes: Floats
    backward_end_seconds: float
    step_seconds: float
    buffer_bytes: int = 0
    """Bytes of the module's buffers, which are sent before the forward pass."""

    def scaled(self, factor: float) -> StepTrace:
        """The same step on a replica that takes `factor` times as long for everything."""
        return replace(
            self,
            ready_seconds=self.ready_seconds * factor,
            backward_end_seconds=self.backward_end_seconds * factor,
            step_seconds=self.step_seconds * factor,
        )


def step_trace(traces: Sequence[GradientTrace]) -> StepTrace:
    """Medians over all traced steps of all repetitions.

    Raises UsageError for traces of different gradients.
    """
    first = traces[0]
    for other in traces:
        if (other.parameters, other.gradient_bytes) != (first.parameters, first.gradient_bytes):
            raise UsageError("the traces of one configuration have different gradients")
    ready = np.median(np.concatenate([t.ready_seconds for t in traces]), axis=0)
    order = np.argsort(ready, kind="stable")
    return StepTrace(
        ready_seconds=ready[order],
        gradient_bytes=np.array(first.gradient_bytes, dtype=float)[order],
        backward_end_seconds=float(
            np.median(np.concatenate([t.backward_end_seconds for t in traces]))
        ),
        step_seconds=float(np.median(np.concatenate([t.step_seconds for t in traces]))),
        buffer_bytes=first.buffer_bytes,
    )


def buckets(trace: StepTrace, cap_mb: float | None = None) -> list[tuple[float, float]]:
    """(Seconds at which it is full, bytes) of each bucket, as DistributedDataParallel fills them.

    A bucket is closed by the gradient that fills it to its cap or beyond. Without `cap_mb` the caps
    are the implementations' defaults: the first bucket has a smaller one.
    """
    cap = (DEFAULT_CAP_MB if cap_mb is None else cap_mb) * MEBI
    next_cap = (DEFAULT_FIRST_CAP_MB if cap_mb is None else cap_mb) * MEBI
    found, size = [], 0.0
    for ready, nbytes in zip(
        trace.ready_seconds.tolist(), trace.gradient_bytes.tolist(), strict=True
    ):
        size += nbytes
        if size >= next_cap:
            found.append((ready, size))
            size, next_cap = 0.0, cap
    return [*found, (float(trace.ready_seconds[-1]), size)] if size else found


def simulated_seconds(
    trace: StepTrace,
    cost: Callable[[float], float],
    *,
    cap_mb: float | None = None,
    accumulation_steps: int = 1,
) -> float:
    """Seconds of an optimizer step.

    A bucket is sent when it is full and the one before it has arrived; communication that is left
    when the backward pass ends makes the step longer. Computing and collectives do not slow each
    other down.

    Args:
        trace: of one micro-step without communication.
        cost: seconds of an all-reduce, by its bytes.
        accumulation_steps: micro-steps; only the last one communicates.
    """
    start = (accumulation_steps - 1) * trace.backward_end_seconds + cost(trace.buffer_bytes)
    free = 0.0
    for ready, nbytes in buckets(trace, cap_mb):
        free = max(free, ready) + cost(nbytes)
    return start + trace.step_seconds + max(0.0, free - trace.backward_end_seconds)

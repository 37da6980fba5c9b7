"""Traces with times that are known, and noise that nobody measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.special import ndtri

from dpbench.analysis.projection.simulation import StepTrace
from dpbench.analysis.projection.stragglers import StragglerNoise
from dpbench.records.trial import GradientTrace, TrialRecord
from tests.analysis.builders import weak_sweep

GRADIENTS = 8
GRADIENT_BYTES = 2**20
STEP_SECONDS = 0.01


def step(
    ready: Sequence[float],
    sizes: Sequence[int] | None = None,
    *,
    forward: float = 0.0,
    end: float | None = None,
    optimizer: float = 0.0,
    **changes: Any,
) -> StepTrace:
    """Gradients ready at these times, of one byte each; backward ends with the last of them."""
    last = ready[-1] if end is None else end
    return StepTrace(
        forward_seconds=forward,
        backward_seconds=last - forward,
        optimizer_seconds=optimizer,
        ready_seconds=tuple(ready),
        gradient_bytes=(1,) * len(ready) if sizes is None else tuple(sizes),
        **changes,
    )


def gradient_trace(steps: Sequence[float] = (STEP_SECONDS,) * 2, **changes: Any) -> GradientTrace:
    """Eight gradients of 1 MiB, the last layer's first, evenly over the middle half of a step."""
    shares = [0.25 + (i + 1) / GRADIENTS / 2 for i in range(GRADIENTS)]
    values: dict[str, Any] = {
        "parameters": tuple(f"layer{i}" for i in range(GRADIENTS)),
        "gradient_bytes": (GRADIENT_BYTES,) * GRADIENTS,
        "gradient_dtypes": ("float32",) * GRADIENTS,
        "ready_seconds": tuple(tuple(s * share for share in reversed(shares)) for s in steps),
        "backward_start_seconds": tuple(s * 0.25 for s in steps),
        "backward_end_seconds": tuple(s * 0.75 for s in steps),
        "step_seconds": tuple(steps),
        "untraced_step_seconds": tuple(steps),
    }
    return GradientTrace(**{**values, **changes})


def with_trace(record: TrialRecord, trace: GradientTrace | None = None) -> TrialRecord:
    first, *others = record.ranks
    traced = replace(first, gradient_trace=trace or gradient_trace())
    return replace(record, ranks=(traced, *others))


def traced_sweep(repetition: int = 0, **changes: Any) -> list[TrialRecord]:
    """As weak_sweep: single, independent ×2, ddp ×1, ddp ×2; group size 1 is traced, and the steps
    of ddp ×2 without synchronization differ between its ranks by 13 : 14 and in nothing else."""
    trace = gradient_trace(**changes)
    return [
        with_trace(record, trace) if record.trial.group_size == 1 else record
        for record in weak_sweep(repetition)
    ]


QUANTILES = 10_000


def assumed_noise(residual_cv: float) -> StragglerNoise:
    """Lognormal, different for every rank and step."""
    normal = ndtri((np.arange(QUANTILES) + 0.5) / QUANTILES) * np.sqrt(np.log1p(residual_cv**2))
    return StragglerNoise(
        rank_cv=0.0, time_cv=0.0, residual_cv=residual_cv, residuals=tuple(normal.tolist())
    )

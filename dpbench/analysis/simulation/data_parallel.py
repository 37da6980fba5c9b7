"""A step of DataParallel: one process drives all replicas, and nothing overlaps.

    step = a · (T_c + (n - 1) (replicate + add)) + T_o

One device hands out the parameters and adds up the gradients of n - 1 others one after the other,
in every one of the `a` micro-steps, so communication grows linearly with n.
"""

from __future__ import annotations

import numpy as np

from dpbench.analysis.simulation.overlap import Cost, Seconds, SimulatedStep
from dpbench.analysis.simulation.trace import StepTrace


def simulate_data_parallel(
    trace: StepTrace,
    group_size: int,
    *,
    add: Cost,
    replicate: Cost | None = None,
    accumulation_steps: int = 1,
    slowdown: Seconds = 1.0,
) -> SimulatedStep:
    """One optimizer step.

    Args:
        trace: of one replica's micro-step.
        group_size: replicas.
        add: seconds of adding the gradients, so many bytes, of one further replica.
        replicate: seconds of sending the parameters to one replica; None where replicas share
            memory, as on the CPU.
        accumulation_steps: micro-steps.
        slowdown: factor on the computing of the slowest replica; see overlap.simulate.

    Raises:
        ValueError: fewer than one replica or micro-step.
    """
    if group_size < 1 or accumulation_steps < 1:
        raise ValueError(
            f"{group_size} replicas, {accumulation_steps} micro-steps: expected 1 or more of each"
        )
    one = add(trace.total_bytes) + (replicate(trace.total_bytes) if replicate else 0.0)
    communication = accumulation_steps * (group_size - 1) * one
    factor = slowdown if isinstance(slowdown, float) else np.asarray(slowdown)
    compute = factor * (accumulation_steps * trace.backward_end_seconds + trace.optimizer_seconds)
    return SimulatedStep(
        step_seconds=compute + communication,
        compute_seconds=compute,
        communication_seconds=communication,
        timeline=(),
    )

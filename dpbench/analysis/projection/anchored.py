"""The simulation of a series: the one that every command takes its steps from."""

from __future__ import annotations

from dataclasses import dataclass

from dpbench.analysis.projection.step_model import Network, StepModel
from dpbench.analysis.simulation.buckets import caps_bytes, into_buckets
from dpbench.analysis.simulation.inputs import SimulationInputs


@dataclass(frozen=True, kw_only=True, slots=True)
class AnchoredModel:
    """A model whose step of one replica is the mean step that was measured of one."""

    model: StepModel
    anchor: float
    """What the traced step was multiplied by: a trace is of medians, and costs something itself."""


def anchored_model(
    inputs: SimulationInputs,
    network: Network,
    *,
    bucket_cap_mb: float | None = None,
    replicas_per_node: int | None = None,
) -> AnchoredModel:
    """`bucket_cap_mb` as of a trial: None for the implementation's own caps."""
    cap, first_cap = caps_bytes(bucket_cap_mb)
    model = StepModel(
        trace=inputs.trace,
        buckets=into_buckets(inputs.trace, cap_bytes=cap, first_cap_bytes=first_cap),
        network=network,
        noise=inputs.noise,
        contention={n: estimate.value for n, estimate in inputs.contention.items()},
        replicas_per_node=replicas_per_node,
        accumulation_steps=inputs.trial.accumulation_steps,
        fills_buckets=inputs.fills_buckets,
    )
    samples = inputs.trial.replica_batch_sizes[0] * inputs.trial.accumulation_steps
    items = samples * inputs.items_per_sample
    anchor = items / inputs.alone.value / model.mean_step(1).seconds
    return AnchoredModel(model=model.rescaled(anchor), anchor=anchor)

"""The simulation of a series: the one that every command takes its steps from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dpbench.analysis.estimate import LogMean
from dpbench.analysis.projection.step_model import Network, StepModel
from dpbench.analysis.repetitions import by_configuration
from dpbench.analysis.simulation.buckets import caps_bytes, into_buckets
from dpbench.analysis.simulation.inputs import SimulationInputs
from dpbench.analysis.summary import usable_repetitions
from dpbench.analysis.throughput import throughput_mean
from dpbench.records import TrialRecord


@dataclass(frozen=True, kw_only=True, slots=True)
class AnchoredModel:
    """A model whose step of one replica is the mean step that was measured of one."""

    model: StepModel
    anchor: float
    """What the traced step was multiplied by: a trace is of medians, and costs something itself."""
    alone: LogMean | None
    """Items per second of the trials that were traced; None where they have no windows."""


def anchored_model(
    records: Sequence[TrialRecord],
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
    alone = _speed_alone(records, inputs)
    if alone is None:
        return AnchoredModel(model=model, anchor=1.0, alone=None)
    items = inputs.trial.replica_batch_sizes[0] * inputs.trial.accumulation_steps
    anchor = items / alone.value / model.mean_step(1).seconds
    return AnchoredModel(model=model.rescaled(anchor), anchor=anchor, alone=alone)


def _speed_alone(records: Sequence[TrialRecord], inputs: SimulationInputs) -> LogMean | None:
    """Items per second of the trials that were traced, in their timed windows."""
    for spec, group in by_configuration(records).items():
        same_work = (spec.workload, spec.threads_per_replica, spec.accumulation_steps) == (
            inputs.trial.workload,
            inputs.trial.threads_per_replica,
            inputs.trial.accumulation_steps,
        )
        if spec.label != inputs.trace_source or not same_work:
            continue
        if usable := usable_repetitions(group):
            return throughput_mean(usable)
    return None

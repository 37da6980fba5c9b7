"""A training step on any number of replicas, by simulation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import log
from typing import Literal, Protocol

import numpy as np

from dpbench.analysis.simulation.buckets import (
    Bucket,
    Cost,
    SimulatedStep,
    caps_bytes,
    into_buckets,
    simulate,
)
from dpbench.analysis.simulation.inputs import SimulationInputs
from dpbench.analysis.simulation.stragglers import StragglerNoise, slowdowns
from dpbench.analysis.simulation.trace import Floats, StepTrace

NOISY_STEPS = 1000
SEED = 0
Overlap = Literal["simulated", "perfect", "none"]
"""Treatment of communication: as simulated; hidden wherever computing continues after the first
bucket is ready; all after the backward pass. The latter two bracket the first, as long as
collectives do not slow down computing."""


class Network(Protocol):
    """Costs of all-reduces: see analysis.communication.collective_cost."""

    def seconds(self, nbytes: float, group_size: int) -> float: ...
    def lost_share(self, nbytes: float) -> float: ...
    def stretch(self, nbytes: float) -> float: ...
    def fill_seconds(self, nbytes: float) -> float: ...
    def broadcast_seconds(self, nbytes: float, group_size: int) -> float: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Inputs:
    """Factors on measured inputs, to see their influence on a result."""

    compute: float = 1.0
    communication: float = 1.0
    contention: float = 1.0
    """Factor for replicas that share a machine."""
    noise: float = 1.0
    """Factor on the logarithm of the slowest replica's slowdown; a single replica is unaffected."""


AS_MEASURED = Inputs()


@dataclass(frozen=True, kw_only=True, slots=True)
class MeanStep:
    """An optimizer step, averaged over noisy ones."""

    seconds: float
    exposed_seconds: float
    """Seconds that communication adds."""
    straggler_seconds: float
    """Seconds that waiting for the slowest replica adds to the step of a single noisy replica."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepModel:
    """The components of a step; the number of replicas is an argument."""

    trace: StepTrace
    """Trace of one micro-step on one replica."""
    buckets: tuple[Bucket, ...]
    network: Network
    noise: StragglerNoise | None = None
    """Noise; None means that all replicas take equally long."""
    contention: Mapping[int, float] = field(default_factory=dict)
    """Factor on computing by the number of replicas that share a machine."""
    replicas_per_node: int | None = None
    """Replicas per node; None means that all are on one machine, as when contention was
    measured."""
    accumulation_steps: int = 1
    fills_buckets: bool = False
    """Whether gradients are copied into buckets, which the trace does not include."""
    overlap: Overlap = "simulated"

    def mean_step(self, group_size: int, inputs: Inputs = AS_MEASURED) -> MeanStep:
        return self.mean_steps(group_size, [inputs])[0]

    def mean_steps(self, group_size: int, cases: Sequence[Inputs]) -> list[MeanStep]:
        """One step for each case; all use the same seeded noise, so that they differ only in their
        inputs."""
        sizes = {bucket.nbytes for bucket in self.buckets}
        costs = {nbytes: self.network.seconds(nbytes, group_size) for nbytes in sizes}
        slowest, alone = self._slowdowns(group_size), self._slowdowns(1)
        return [self._mean_step(group_size, case, slowest, alone, costs) for case in cases]

    def contention_at(self, group_size: int) -> float:
        """Contention at the nearest measured number of replicas on a machine."""
        together = min(group_size, self.replicas_per_node or group_size)
        if together == 1 or not self.contention:
            return 1.0
        return self.contention[min(self.contention, key=lambda n: abs(log(n / together)))]

    def rescaled(self, factor: float) -> StepModel:
        """The model for replicas that take `factor` times as long for all their computing."""
        buckets = (replace(b, ready_seconds=b.ready_seconds * factor) for b in self.buckets)
        return replace(self, trace=self.trace.scaled(factor), buckets=tuple(buckets))

    def without_stragglers(self) -> StepModel:
        """The model where every replica takes its average time in every step."""
        return replace(self.rescaled(float(np.mean(self._slowdowns(1)))), noise=None)

    def _slowdowns(self, group_size: int) -> Floats:
        if self.noise is None:
            return np.ones(1)
        generator = np.random.default_rng(SEED)
        return slowdowns(self.noise, group_size, NOISY_STEPS, generator)

    def _mean_step(
        self,
        group_size: int,
        inputs: Inputs,
        slowest: Floats,
        alone: Floats,
        costs: Mapping[int, float],
    ) -> MeanStep:
        def cost(nbytes: float) -> float:
            return inputs.communication * costs[int(nbytes)]

        def send(nbytes: float) -> float:
            return inputs.communication * self.network.broadcast_seconds(nbytes, group_size)

        contention = self.contention_at(group_size)
        if contention != 1:
            contention *= inputs.contention
        usual = inputs.compute * contention * np.mean(alone, keepdims=True)
        # One replica takes its measured time on average, however much it is disturbed.
        factor = usual / np.mean(alone**inputs.noise)
        noisy = self._simulate(group_size, cost, send, factor * slowest**inputs.noise, usual)
        undisturbed = self._simulate(group_size, cost, send, usual, usual)
        seconds = float(np.mean(noisy.step_seconds))
        return MeanStep(
            seconds=seconds,
            exposed_seconds=float(np.mean(noisy.exposed_seconds)),
            straggler_seconds=seconds - float(np.mean(undisturbed.step_seconds)),
        )

    def _simulate(
        self, group_size: int, cost: Cost, send: Cost, slowdown: Floats, usual: Floats
    ) -> SimulatedStep:
        """Simulate steps; `usual` is the slowdown after the last gradient.

        No replica waits there, so it must not grow with their number: communication would hide
        behind it.
        """
        if self.overlap != "simulated":
            return self._simulate_bracket(group_size, cost, send, slowdown, usual)
        together = group_size > 1
        return simulate(
            self.trace,
            self.buckets,
            cost,
            lost_share=self.network.lost_share if together else None,
            stretch=self.network.stretch if together else None,
            fill=self.network.fill_seconds if together and self.fills_buckets else None,
            broadcast=send,
            accumulation_steps=self.accumulation_steps,
            slowdown=slowdown,
            tail_slowdown=usual,
        )

    def _simulate_bracket(
        self, group_size: int, cost: Cost, send: Cost, slowdown: Floats, usual: Floats
    ) -> SimulatedStep:
        """Steps with all communication in one piece, starting at the first or after the last
        gradient.

        T_c + sum c, and max(T_c, r_1 + sum c); filling the buckets is part of T_c, that of the
        first also of r_1.
        """
        trace, fills = self.trace, group_size > 1 and self.fills_buckets
        filled = [self.network.fill_seconds(b.nbytes) if fills else 0.0 for b in self.buckets]
        alone = trace.ready_seconds[-1] * slowdown + trace.tail_seconds * usual
        computed = alone + sum(filled)
        start = computed
        if self.overlap == "perfect":
            start = self.buckets[0].ready_seconds * slowdown + filled[0]
        whole = sum(cost(bucket.nbytes) for bucket in self.buckets)
        sent = send(trace.buffer_bytes) if trace.buffer_bytes else 0.0
        before = (self.accumulation_steps - 1) * alone
        optimizer = trace.optimizer_seconds * slowdown
        return SimulatedStep(
            step_seconds=before + sent + np.maximum(computed, start + whole) + optimizer,
            compute_seconds=before + alone + optimizer,
            communication_seconds=sent + whole,
            timeline=(),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class AnchoredModel:
    """A model whose step of one replica equals the measured mean step."""

    model: StepModel
    anchor: float
    """Factor on the traced step: a trace has medians, and tracing itself costs time."""


def anchored_model(
    inputs: SimulationInputs,
    network: Network,
    *,
    cap_mb: float | None = None,
    replicas_per_node: int | None = None,
) -> AnchoredModel:
    """`cap_mb` is the bucket size; None for the implementation's own caps."""
    cap, first_cap = caps_bytes(cap_mb)
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

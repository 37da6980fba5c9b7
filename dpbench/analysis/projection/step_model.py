"""A training step on any number of replicas, by simulation, and the uncertainty of its numbers.

Each input is moved to both ends of its 90 % interval while the others stay: the change of the
result is its part of the band, and the parts of independent inputs add up as the root of their
squares. A step time also has the error of the model itself, on logarithms: the error of the
simulation at the nearest measured group size, to both sides, and beyond the largest one an error
like that of a fitted law (see `analysis.laws.band`), with the square root of the doublings and
slower rather than faster. The latter was calibrated on laws, not on simulations, of which nobody
has enough hold-outs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from math import log
from statistics import fmean
from typing import Literal, Protocol

import numpy as np
from scipy.special import chdtri

from dpbench.analysis.communication.collective_cost import CollectiveCost
from dpbench.analysis.communication.curves import curves
from dpbench.analysis.estimate import Estimate, Floats, LogMean, t_quantile
from dpbench.analysis.laws.band import CONFIDENCE, TAILS, banded, published_misspecification
from dpbench.analysis.projection.inputs import SimulationInputs
from dpbench.analysis.projection.simulation import (
    Bucket,
    Cost,
    SimulatedStep,
    StepTrace,
    caps_bytes,
    into_buckets,
    simulate,
)
from dpbench.analysis.projection.stragglers import StragglerNoise, slowdowns
from dpbench.records.collectives import CollectiveRecord

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
        )


def anchored_model(
    inputs: SimulationInputs,
    network: Network,
    *,
    cap_mb: float | None = None,
    replicas_per_node: int | None = None,
) -> tuple[StepModel, float]:
    """The model, and its anchor; `cap_mb` is the bucket size, None for the implementation's caps.

    The anchor is the factor on the traced step that makes it the measured mean step: a trace has
    medians, and tracing itself costs time.
    """
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
    return model.rescaled(anchor), anchor


Ends = tuple[float, float]
"""The lowest and the highest."""
EXACT: Ends = (1.0, 1.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """The ends of each input's interval, as factors on the measured value."""

    compute: Ends = EXACT
    communication: Ends = EXACT
    contention: Ends = EXACT
    noise: Ends = EXACT

    def with_communication(self, factor: float) -> Spread:
        """The spread with communication that may also be off by a factor, either way."""
        low, high = (math.hypot(math.log(end), math.log(factor)) for end in self.communication)
        return replace(self, communication=(math.exp(-low), math.exp(high)))

    def cases(self) -> list[Inputs]:
        """Inputs as measured; then each input at its lower and at its upper end."""
        return [
            AS_MEASURED,
            *(
                Inputs(**{field.name: end})
                for field in fields(self)
                for end in getattr(self, field.name)
            ),
        ]


def ends_of_mean(mean: LogMean) -> Ends:
    """Ends for a geometric mean; exact if its error is unknown."""
    if mean.squared_error is None:
        return EXACT
    reach = t_quantile(mean.degrees_of_freedom, CONFIDENCE) * math.sqrt(mean.squared_error)
    return math.exp(-reach), math.exp(reach)


def ends_of_deviation(degrees_of_freedom: float) -> Ends:
    """Ends for a standard deviation of normal values: the root of ν ÷ chi-square."""
    if degrees_of_freedom < 1:
        return EXACT
    low, high = (math.sqrt(degrees_of_freedom / chdtri(degrees_of_freedom, tail)) for tail in TAILS)
    return low, high


def step_band(
    seconds: Sequence[float], octaves: float, *, sample_size: int, model_error: float = 0.0
) -> Estimate:
    """A step time from its cases: below and above on logarithms, with the error of the model.

    `model_error` is |ln(simulated ÷ measured)| of the nearest measured step.
    """
    swings = [math.log(case / seconds[0]) for case in seconds[1:]]
    law = published_misspecification().beyond.reach(octaves)
    below = math.hypot(law[0], model_error, *(min(0.0, swing) for swing in swings))
    above = math.hypot(law[1], model_error, *(max(0.0, swing) for swing in swings))
    value = seconds[0]
    ends = (value * math.exp(-below), value * math.exp(above))
    return banded(value, ends, "s", sample_size=sample_size)


def part_band(seconds: Sequence[float], *, sample_size: int) -> Estimate:
    """A part of a step from its cases; without the error of the model, which applies to the whole
    step.

    If the part is not negative, its band does not go below zero.
    """
    value = seconds[0]
    below, above = swings(seconds)
    low = value - below if value < 0 else max(0.0, value - below)
    return banded(value, (low, value + above), "s", sample_size=sample_size)


def swings(cases: Sequence[float]) -> tuple[float, float]:
    """How far a value moves down and up with its inputs, from its cases: the one as measured, then
    each input at either end of its interval."""
    below = math.hypot(*(min(0.0, case - cases[0]) for case in cases[1:]))
    above = math.hypot(*(max(0.0, case - cases[0]) for case in cases[1:]))
    return below, above


def input_spread(
    inputs: SimulationInputs,
    network: CollectiveCost,
    collectives: Sequence[CollectiveRecord],
    buckets: Sequence[Bucket],
) -> Spread:
    """Spread of all inputs; `collectives` show how much the time of `buckets` on the network
    differs from run to run."""
    return Spread(
        compute=ends_of_mean(_alone(inputs)),
        communication=_communication_ends(collectives, network, buckets),
        contention=_contention_ends(inputs.contention),
        noise=_noise_ends(inputs.noise),
    )


def _alone(inputs: SimulationInputs) -> LogMean:
    """The speed of one replica, or its traced steps if its windows have no known error."""
    if inputs.alone.squared_error is not None:
        return inputs.alone
    means = [fmean(trace.step_seconds) for trace in inputs.traces]
    first = inputs.traces[0].step_seconds
    if len(means) == 1 and len(first) > 1:
        return LogMean.of_batches(means[0], first)
    return LogMean.of_runs(means)


def _communication_ends(
    collectives: Sequence[CollectiveRecord], network: CollectiveCost, buckets: Sequence[Bucket]
) -> Ends:
    """Ends for the time of all buckets as the simulation uses it, over repetitions of the largest
    relevant group."""
    if not network.curves:
        return EXACT
    used = network.curves[-1]
    totals = []
    for repetition in sorted({record.collective.repetition for record in collectives}):
        own = [r for r in collectives if r.collective.repetition == repetition]
        totals += [
            sum(network.seen(curve).seconds_at(bucket.nbytes) for bucket in buckets)
            for curve in curves(own)
            if (curve.collective, curve.backend, curve.group_size, curve.dtype)
            == (used.collective, used.backend, used.group_size, used.dtype)
        ]
    return ends_of_mean(LogMean.of_runs(totals)) if totals else EXACT


def _contention_ends(contention: Mapping[int, Estimate]) -> Ends:
    """Ends for the largest group; its 95 % interval converted to 90 %."""
    if not contention:
        return EXACT
    factor = contention[max(contention)]
    if factor.interval is None or factor.sample_size < 2:
        return EXACT
    freedom = factor.sample_size - 1
    reach = math.log(factor.interval[1] / factor.value)
    reach *= t_quantile(freedom, CONFIDENCE) / t_quantile(freedom, factor.confidence)
    return math.exp(-reach), math.exp(reach)


def _noise_ends(noise: StragglerNoise | None) -> Ends:
    """Ends for the deviation between replicas: with few ranks, it is hardly known.

    Degrees of freedom of a sum of variances after Satterthwaite.
    """
    if noise is None or noise.ranks < 2 or not (noise.rank_cv or noise.residual_cv):
        return EXACT
    parts = (
        (noise.rank_cv**2, noise.ranks - 1),
        (noise.residual_cv**2, noise.rank_steps * (noise.ranks - 1) / noise.ranks),
    )
    total = sum(variance for variance, _ in parts)
    freedom = total**2 / sum(variance**2 / degrees for variance, degrees in parts)
    return ends_of_deviation(freedom)

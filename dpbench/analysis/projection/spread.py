"""The uncertainty of a simulated number: from its inputs, and from the model's own error.

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
from dataclasses import dataclass, fields, replace
from statistics import fmean

from dpbench.analysis.communication.collective_cost import CollectiveCost
from dpbench.analysis.communication.curve import curves
from dpbench.analysis.distributions import chi_square_quantile_above
from dpbench.analysis.estimate import Estimate, LogMean, t_quantile
from dpbench.analysis.laws.band import CONFIDENCE, TAILS, published_misspecification
from dpbench.analysis.projection.step_model import AS_MEASURED, Inputs
from dpbench.analysis.simulation.buckets import Bucket
from dpbench.analysis.simulation.inputs import SimulationInputs
from dpbench.analysis.simulation.stragglers import StragglerNoise
from dpbench.collectives import CollectiveRecord

Ends = tuple[float, float]
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
    low, high = (
        math.sqrt(degrees_of_freedom / chi_square_quantile_above(degrees_of_freedom, tail))
        for tail in TAILS
    )
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
    return _estimate(value, value * math.exp(-below), value * math.exp(above), "s", sample_size)


def part_band(seconds: Sequence[float], *, sample_size: int) -> Estimate:
    """A part of a step from its cases; without the error of the model, which applies to the whole
    step.

    If the part is not negative, its band does not go below zero.
    """
    value = seconds[0]
    below = math.hypot(*(min(0.0, case - value) for case in seconds[1:]))
    above = math.hypot(*(max(0.0, case - value) for case in seconds[1:]))
    low = value - below if value < 0 else max(0.0, value - below)
    return _estimate(value, low, value + above, "s", sample_size)


def _estimate(value: float, low: float, high: float, unit: str, sample_size: int) -> Estimate:
    return Estimate(
        value=value,
        low=low,
        high=high,
        confidence=CONFIDENCE,
        unit=unit,
        sample_size=sample_size,
        basis="model",
    )


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

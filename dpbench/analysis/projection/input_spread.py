"""The intervals of what a simulation starts from: computing, communication, contention, noise."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

from dpbench.analysis.communication.collective_cost import CollectiveCost
from dpbench.analysis.communication.curve import curves
from dpbench.analysis.estimate import Estimate, LogMean, t_quantile
from dpbench.analysis.laws.band import CONFIDENCE
from dpbench.analysis.projection.spread import EXACT, Ends, Spread, ends_of_deviation, ends_of_mean
from dpbench.analysis.simulation.buckets import Bucket
from dpbench.analysis.simulation.inputs import SimulationInputs
from dpbench.analysis.simulation.stragglers import StragglerNoise
from dpbench.collectives import CollectiveRecord


def input_spread(
    inputs: SimulationInputs,
    network: CollectiveCost,
    collectives: Sequence[CollectiveRecord],
    buckets: Sequence[Bucket],
) -> Spread:
    """`collectives` tell how far the time of `buckets` on the network differs from run to run."""
    return Spread(
        compute=ends_of_mean(_alone(inputs)),
        communication=_communication_ends(collectives, network, buckets),
        contention=_contention_ends(inputs.contention),
        noise=_noise_ends(inputs.noise),
    )


def _alone(inputs: SimulationInputs) -> LogMean:
    """The speed of one replica, or, where its windows tell no error, its traced steps."""
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
    """Of the time of all buckets, as the simulation sees it, over repetitions of the largest group
    that counts."""
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
    """Of the largest group; an interval of 95 % made one of 90 %."""
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
    """Of the deviation between replicas: of few ranks, hardly anything is known of the next one.

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

"""Steps of any number of replicas on a network: simulated from one replica's trace, with bands.

Computing is as traced on one replica, times one measured factor, the contention: how much longer
the slowest replica of a machine takes beside the others, from the steps that sweeps run without
gradient synchronization. Replicas of several machines wait for no slower one. The band moves each
input to both ends of its interval, and adds, beyond the measured sizes, the error of a law
(`WITHIN_NODE`). That simulations err like laws is an assumption: nobody has published enough of
them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import median

import numpy as np

from dpbench import units
from dpbench.analysis.estimate import Estimate, geometric_mean, single_value
from dpbench.analysis.projection.law import WITHIN_NODE, error_scale
from dpbench.analysis.projection.network import Topology
from dpbench.analysis.projection.series import ProjectedPoint, Projection, Series
from dpbench.analysis.throughput import free_communication_seconds, slowest_rank_step_seconds
from dpbench.errors import UsageError
from dpbench.records.trial import GradientTrace
from dpbench.specs import Configuration
from dpbench.specs.traits import IMPLEMENTATIONS, SCRIPT
from dpbench.units import MEBI

BUCKET_USERS = tuple(
    name
    for name, traits in IMPLEMENTATIONS.items()
    if traits.has_setting("bucket_cap_mb") and traits.shards is None and name != SCRIPT
)
"""Implementations that reduce whole gradients in buckets while the backward pass goes on; of a
script no gradients are traced."""
DEFAULT_FIRST_CAP_MB = 1.0
DEFAULT_CAP_MB = 25.0
"""Default caps of their first bucket and of the others in torch's DistributedDataParallel and
dpbench's, on every backend: a small first bucket lets communication start early. A given cap also
holds for the first bucket."""


def typical_step(traces: Sequence[GradientTrace]) -> GradientTrace:
    """One step with the medians of all traced steps of all repetitions, and its gradients in the
    order in which they are ready.

    Raises UsageError for traces of different gradients.
    """
    first = traces[0]
    for trace in traces:
        if (trace.parameters, trace.gradient_bytes) != (first.parameters, first.gradient_bytes):
            raise UsageError("the traces of one configuration have different gradients")
    ready = np.median(np.concatenate([trace.ready_seconds for trace in traces]), axis=0)
    order = np.argsort(ready, kind="stable").tolist()
    return replace(
        first,
        parameters=tuple(first.parameters[place] for place in order),
        gradient_bytes=tuple(first.gradient_bytes[place] for place in order),
        ready_seconds=(tuple(ready[order].tolist()),),
        backward_end_seconds=(median(end for t in traces for end in t.backward_end_seconds),),
        step_seconds=(median(seconds for t in traces for seconds in t.step_seconds),),
    )


def buckets(step: GradientTrace, cap_mb: float | None = None) -> list[tuple[float, int]]:
    """(Seconds at which it is full, bytes) of each bucket, as DistributedDataParallel fills them in
    a typical step.

    A bucket is closed by the gradient that fills it to its cap or beyond. Without `cap_mb` the caps
    are the implementations' defaults: the first bucket has a smaller one.
    """
    cap = (DEFAULT_CAP_MB if cap_mb is None else cap_mb) * MEBI
    next_cap = (DEFAULT_FIRST_CAP_MB if cap_mb is None else cap_mb) * MEBI
    filled = list[tuple[float, int]]()
    size = 0
    (ready_seconds,) = step.ready_seconds
    for ready, nbytes in zip(ready_seconds, step.gradient_bytes, strict=True):
        size += nbytes
        if size >= next_cap:
            filled.append((ready, size))
            size = 0
            next_cap = cap
    return [*filled, (ready_seconds[-1], size)] if size else filled


def simulated_seconds(
    step: GradientTrace,
    cost: Callable[[float], float],
    *,
    scale: float = 1.0,
    cap_mb: float | None = None,
    accumulate: int = 1,
) -> float:
    """Seconds of an optimizer step.

    A bucket is sent when it is full and the one before it has arrived; communication that is left
    when the backward pass ends makes the step longer. Computing and collectives do not slow each
    other down.

    Args:
        step: a typical micro-step, without communication.
        cost: seconds of an all-reduce, by its bytes.
        scale: how many times as long as traced everything but communication takes.
        accumulate: micro-steps; only the last one communicates.
    """
    backward_end = scale * step.backward_end_seconds[0]
    free = 0.0
    for ready, nbytes in buckets(step, cap_mb):
        free = max(free, scale * ready) + cost(nbytes)
    before = (accumulate - 1) * backward_end + cost(step.buffer_bytes)
    return before + scale * step.step_seconds[0] + max(0.0, free - backward_end)


def contention_by_size(series: Series, seconds_alone: float) -> dict[int, Estimate]:
    """How many times as long as one replica alone, whose step takes `seconds_alone`, the slowest of
    so many replicas computes; empty if no steps without synchronization were measured."""
    contention = {}
    for row in series.rows:
        steps = [free for r in row.records if (free := free_communication_seconds(r)) is not None]
        if row.group_size > 1 and steps:
            ratios = [seconds / seconds_alone for seconds in steps]
            contention[row.group_size] = geometric_mean(ratios, unit="×")
    return contention


def project_by_simulation(
    series: Series, network: Topology, group_sizes: Sequence[int]
) -> Projection:
    """A point for each group size, ascending; raises UsageError if the series cannot be simulated.

    One replica needs no network, and is as measured.
    """
    configuration = series.configuration
    assert configuration is not None, "simulations are of sweeps"
    alone = series.rows[0].records if series.group_sizes[0] == 1 else ()
    traces = [rank.gradient_trace for r in alone for rank in r.ranks if rank.gradient_trace]
    _require_simulable(series, configuration, has_trace=bool(traces))
    step = typical_step(traces)
    accumulated = (configuration.accumulate - 1) * step.backward_end_seconds[0]
    traced = step.step_seconds[0] + accumulated
    measured = geometric_mean([slowest_rank_step_seconds(record) for record in alone], unit="s")
    contention = contention_by_size(series, measured.value)

    def simulated(n: int, computing: float, slower: float) -> float:
        """Seconds of a step whose computing and collectives take so many times as long."""
        return simulated_seconds(
            step,
            lambda nbytes: slower * network.seconds(nbytes, n),
            scale=computing * measured.value / traced,
            cap_mb=configuration.bucket_cap_mb,
            accumulate=configuration.accumulate,
        )

    points = []
    for n in sorted(set(group_sizes)):
        reason = series.beyond_one_machine(n, network.ranks_per_node) or network.refusal(n)
        if n == 1:
            points.append(series.measured_point(1))
        elif reason is not None:
            points.append(ProjectedPoint(group_size=n, origin="refused", reason=reason))
        else:
            throughput, errors = _simulated_throughput(series, network, n, contention, simulated)
            points.append(series.predicted_point(n, "projected", throughput, errors, len(traces)))
    sent = buckets(step, configuration.bucket_cap_mb)
    total = units.bytes_binary(sum(nbytes for _, nbytes in sent))
    slowdown = "as in steps without synchronization" if contention else "not at all"
    return Projection(
        series=series,
        points=tuple(points),
        network=network.name,
        assumptions=(
            f"gradients ({total}) are reduced in {units.counted(len(sent), 'bucket')}",
            network.assumption,
            f"replicas on one machine slow each other down {slowdown}",
            "larger groups have no slower stragglers than the measured ones",
            "computation and communication do not slow each other down",
            "the input pipeline is fast enough, and no replica fails",
        ),
    )


def _simulated_throughput(
    series: Series,
    network: Topology,
    n: int,
    contention: Mapping[int, Estimate],
    simulated: Callable[[int, float, float], float],
) -> tuple[float, list[float]]:
    """The throughput of n replicas, and its errors on a logarithmic scale: each input moved to both
    ends of its interval, and the error of a law beyond the measured sizes.

    `simulated` gives the seconds of a step from the number of replicas and how many times as long
    computing and collectives take.
    """
    # Contention is that of the nearest measured number of replicas on one machine.
    together = min(n, network.ranks_per_node)
    beside = single_value(1.0, "×")
    if together > 1 and contention:
        nearest = min(contention, key=lambda size: abs(math.log(size / together)))
        beside = contention[nearest]
    seconds = simulated(n, beside.value, 1.0)
    alone = series.throughputs[0]
    unsure = network.uncertainty or 1.0
    moved = [
        *(simulated(n, beside.value * end / alone.value, 1.0) for end in alone.ends),
        *(simulated(n, end, 1.0) for end in beside.ends),
        *(simulated(n, beside.value, factor) for factor in (1 / unsure, unsure)),
    ]
    errors = [math.log(other / seconds) for other in moved]
    doublings = max(0.0, math.log2(n / series.group_sizes[-1]))
    rise = max(0.0, math.log(seconds / simulated(1, 1.0, 1.0))) / math.log2(n)
    scale = error_scale(rise, doublings)
    errors += [WITHIN_NODE.low * scale, WITHIN_NODE.high * scale]
    # Sweeps have a batch size.
    return n * (series.items_per_replica or 0) / seconds, errors


def _require_simulable(series: Series, configuration: Configuration, *, has_trace: bool) -> None:
    """Raise UsageError for a series that cannot be simulated."""
    if configuration.implementation not in BUCKET_USERS:
        raise UsageError(
            f"{series.rows[-1].series} cannot be simulated, only {', '.join(BUCKET_USERS)} can; "
            "without a network, project uses a law"
        )
    if configuration.comm_hook != "none":
        raise UsageError(
            f"{series.label}: a communication hook cannot be simulated; sweep without it"
        )
    if not has_trace:
        raise UsageError(
            f"{series.label}: a simulation needs the gradient trace of group size 1; measure it "
            "with dpbench sweep --group-sizes 1,2"
        )

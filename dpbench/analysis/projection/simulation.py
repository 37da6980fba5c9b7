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
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median

import numpy as np

from dpbench import units
from dpbench.analysis.estimate import Estimate, geometric_mean, single_value
from dpbench.analysis.projection.curve import ProjectedPoint, ScalingCurve
from dpbench.analysis.projection.law import WITHIN_NODE, error_scale
from dpbench.analysis.projection.network import Topology
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
FURTHER_GROUP_SIZES = (8, 64, 1000)
"""Simulated group sizes besides the measured ones, unless others are asked for."""
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
    sent: Sequence[tuple[float, int]],
    cost: Callable[[float], float],
    *,
    computing_seconds: float,
    accumulate: int = 1,
) -> float:
    """Seconds of an optimizer step.

    A bucket is sent when it is full and the one before it has arrived; communication that is left
    when the backward pass ends makes the step longer. Computing and collectives do not slow each
    other down.

    Args:
        step: a typical micro-step, without communication.
        sent: its `buckets`.
        cost: seconds of an all-reduce, by its bytes.
        computing_seconds: an optimizer step without communication, to which the trace is scaled.
        accumulate: micro-steps; only the last one communicates.
    """
    (traced_seconds,), (backward_end,) = step.step_seconds, step.backward_end_seconds
    earlier = (accumulate - 1) * backward_end
    scale = computing_seconds / (earlier + traced_seconds)
    free = 0.0
    for ready, nbytes in sent:
        free = max(free, scale * ready) + cost(nbytes)
    exposed = max(0.0, free - scale * backward_end)
    return computing_seconds + cost(step.buffer_bytes) + exposed


def traces_to_simulate(curve: ScalingCurve, configuration: Configuration) -> list[GradientTrace]:
    """The traces of group size 1; raises UsageError for a curve that cannot be simulated."""
    if configuration.implementation not in BUCKET_USERS:
        raise UsageError(
            f"{curve.rows[-1].series} cannot be simulated, only {', '.join(BUCKET_USERS)} can; "
            "without a network, project uses a law"
        )
    if configuration.comm_hook != "none":
        raise UsageError(
            f"{curve.label}: a communication hook cannot be simulated; sweep without it"
        )
    ranks = [rank for row in curve.rows if row.group_size == 1 for rank in row.ranks]
    traces = [rank.gradient_trace for rank in ranks if rank.gradient_trace]
    if not traces:
        raise UsageError(
            f"{curve.label}: a simulation needs the gradient trace of group size 1; measure it "
            "with dpbench sweep --group-sizes 1,2"
        )
    return traces


def contention_by_size(curve: ScalingCurve, seconds_alone: float) -> dict[int, Estimate]:
    """How many times as long as one replica alone, whose step takes `seconds_alone`, the slowest of
    so many replicas computes; empty if no steps without synchronization were measured."""
    contention = {}
    for row in curve.rows:
        steps = [
            free for r in row.usable_records if (free := free_communication_seconds(r)) is not None
        ]
        if row.group_size > 1 and steps:
            ratios = [seconds / seconds_alone for seconds in steps]
            contention[row.group_size] = geometric_mean(ratios, unit="×")
    return contention


def project_by_simulation(
    curve: ScalingCurve, network: Topology, group_sizes: Sequence[int] | None = None
) -> ScalingCurve:
    """The curve of a sweep with a point for each group size; None for the measured ones and
    FURTHER_GROUP_SIZES.

    One replica needs no network, and is as measured. Raises UsageError for a curve that cannot be
    simulated.
    """
    configuration = curve.rows[-1].configuration
    assert configuration is not None, "simulations are of sweeps"
    traces = traces_to_simulate(curve, configuration)
    step = typical_step(traces)
    sent = buckets(step, configuration.bucket_cap_mb)
    records = curve.rows[0].usable_records
    alone = geometric_mean([slowest_rank_step_seconds(record) for record in records], unit="s")
    contention = contention_by_size(curve, alone.value)
    slowdowns = (1 / (network.uncertainty or 1.0), network.uncertainty or 1.0)

    def step_seconds(n: int, alone: float, beside: float, slowdown: float = 1.0) -> float:
        """Seconds of a step in which replicas compute `beside` times as long as `alone`, and
        collectives take `slowdown` times as long as on the network."""
        return simulated_seconds(
            step,
            sent,
            lambda nbytes: slowdown * network.seconds(nbytes, n),
            computing_seconds=beside * alone,
            accumulate=configuration.accumulate,
        )

    points = list[ProjectedPoint]()
    for n in sorted({*(group_sizes or (*curve.group_sizes, *FURTHER_GROUP_SIZES))}):
        reason = curve.beyond_one_machine(n, network.ranks_per_node) or network.refusal(n)
        if n == 1:
            points.append(curve.measured_point(1))
        elif reason is not None:
            points.append(ProjectedPoint(group_size=n, origin="refused", reason=reason))
        else:
            # Contention is that of the nearest measured number of replicas on one machine.
            together = min(n, network.ranks_per_node)
            beside = single_value(1.0, "×")
            if together > 1 and contention:
                nearest = min(contention, key=lambda size: abs(math.log(size / together)))
                beside = contention[nearest]
            seconds = step_seconds(n, alone.value, beside.value)
            moved = [
                *(step_seconds(n, end, beside.value) for end in alone.ends),
                *(step_seconds(n, alone.value, end) for end in beside.ends),
                *(step_seconds(n, alone.value, beside.value, slower) for slower in slowdowns),
            ]
            errors = [math.log(other / seconds) for other in moved]
            rise = max(0.0, math.log(seconds / alone.value)) / math.log2(n)
            scale = error_scale(rise, max(0.0, math.log2(n / curve.group_sizes[-1])))
            errors += [WITHIN_NODE.low * scale, WITHIN_NODE.high * scale]
            throughput = n * curve.throughputs[0].value * alone.value / seconds
            points.append(curve.predicted_point(n, "projected", throughput, errors, len(traces)))
    lines = assumptions(sent, network, has_contention=bool(contention))
    return replace(curve, points=tuple(points), assumptions=lines)


def assumptions(
    sent: Sequence[tuple[float, int]], network: Topology, *, has_contention: bool
) -> tuple[str, ...]:
    """What the steps of a simulation rest on, in sentences."""
    total = units.bytes_binary(sum(nbytes for _, nbytes in sent))
    slower = "as in steps without synchronization" if has_contention else "not at all"
    return (
        f"gradients ({total}) are reduced in {units.counted(len(sent), 'bucket')}",
        network.assumption,
        f"replicas on one machine slow each other down {slower}",
        "larger groups have no slower stragglers than the measured ones",
        "computation and communication do not slow each other down",
        "the input pipeline is fast enough, and no replica fails",
    )

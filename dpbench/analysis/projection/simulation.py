"""Steps of any number of replicas on a network: simulated from one replica's trace, with bands.

Computing is as traced on one replica, times one measured factor, the contention: how much longer
the slowest replica of a machine takes beside the others, from the steps that sweeps run without
gradient synchronization. Replicas of several machines wait for no slower one. The band moves each
input to both ends of its interval, and adds, beyond the measured sizes, the error of a law
(`law.WITHIN_NODE`). That simulations err like laws is an assumption: nobody has published enough of
them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dpbench import units
from dpbench.analysis.estimate import Estimate, Floats, geometric_mean, single_value
from dpbench.analysis.projection.law import WITHIN_NODE, error_scale
from dpbench.analysis.projection.network import Topology
from dpbench.analysis.projection.series import ProjectedRow, Projection, Series
from dpbench.analysis.throughput import free_communication_seconds, mean_rank_step_seconds
from dpbench.errors import UsageError
from dpbench.records.trial import GradientTrace
from dpbench.specs import TrialSpec
from dpbench.specs.traits import DEFAULT_CAP_MB, DEFAULT_FIRST_CAP_MB
from dpbench.specs.trial import BUCKETED
from dpbench.units import MEBI


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTrace:
    """Seconds since a step of one replica began, typical of the traced steps."""

    ready_seconds: Floats
    """When each gradient is ready, ascending."""
    gradient_bytes: Floats
    backward_end_seconds: float
    step_seconds: float
    buffer_bytes: int = 0
    """Bytes of the module's buffers, which are sent before the forward pass."""

    def scaled(self, factor: float) -> StepTrace:
        """The same step on a replica that takes `factor` times as long for everything."""
        return replace(
            self,
            ready_seconds=self.ready_seconds * factor,
            backward_end_seconds=self.backward_end_seconds * factor,
            step_seconds=self.step_seconds * factor,
        )


def step_trace(traces: Sequence[GradientTrace]) -> StepTrace:
    """Medians over all traced steps of all repetitions.

    Raises UsageError for traces of different gradients.
    """
    first = traces[0]
    for other in traces:
        if (other.parameters, other.gradient_bytes) != (first.parameters, first.gradient_bytes):
            raise UsageError("the traces of one configuration have different gradients")
    ready = np.median(np.concatenate([t.ready_seconds for t in traces]), axis=0)
    order = np.argsort(ready, kind="stable")
    return StepTrace(
        ready_seconds=ready[order],
        gradient_bytes=np.array(first.gradient_bytes, dtype=float)[order],
        backward_end_seconds=float(
            np.median(np.concatenate([t.backward_end_seconds for t in traces]))
        ),
        step_seconds=float(np.median(np.concatenate([t.step_seconds for t in traces]))),
        buffer_bytes=first.buffer_bytes,
    )


def buckets(trace: StepTrace, cap_mb: float | None = None) -> list[tuple[float, float]]:
    """(Seconds at which it is full, bytes) of each bucket, as DistributedDataParallel fills them.

    A bucket is closed by the gradient that fills it to its cap or beyond. Without `cap_mb` the caps
    are the implementations' defaults: the first bucket has a smaller one.
    """
    cap = (DEFAULT_CAP_MB if cap_mb is None else cap_mb) * MEBI
    next_cap = (DEFAULT_FIRST_CAP_MB if cap_mb is None else cap_mb) * MEBI
    found, size = [], 0.0
    for ready, nbytes in zip(
        trace.ready_seconds.tolist(), trace.gradient_bytes.tolist(), strict=True
    ):
        size += nbytes
        if size >= next_cap:
            found.append((ready, size))
            size, next_cap = 0.0, cap
    return [*found, (float(trace.ready_seconds[-1]), size)] if size else found


def simulated_seconds(
    trace: StepTrace,
    cost: Callable[[float], float],
    *,
    cap_mb: float | None = None,
    accumulation_steps: int = 1,
) -> float:
    """Seconds of an optimizer step.

    A bucket is sent when it is full and the one before it has arrived; communication that is left
    when the backward pass ends makes the step longer. Computing and collectives do not slow each
    other down.

    Args:
        trace: of one micro-step without communication.
        cost: seconds of an all-reduce, by its bytes.
        accumulation_steps: micro-steps; only the last one communicates.
    """
    start = (accumulation_steps - 1) * trace.backward_end_seconds + cost(trace.buffer_bytes)
    free = 0.0
    for ready, nbytes in buckets(trace, cap_mb):
        free = max(free, ready) + cost(nbytes)
    return start + trace.step_seconds + max(0.0, free - trace.backward_end_seconds)


@dataclass(frozen=True, kw_only=True, slots=True)
class Simulation:
    """A series, and all that its steps are simulated from."""

    series: Series
    network: Topology
    trace: StepTrace
    """Scaled so that one replica takes its measured mean step."""
    traces: int
    """Number of traced repetitions."""
    trial: TrialSpec
    """The trial at group size 1."""
    contention: Mapping[int, Estimate]
    """Group size → step of its slowest replicas without synchronization ÷ the step of one."""

    def step_seconds(
        self, n: int, *, compute: float = 1.0, contention: float = 1.0, network: float = 1.0
    ) -> float:
        """Seconds of a step, with each input so many times as large as measured."""
        beside = self.contention_at(n).value * contention if n > 1 else 1.0
        return simulated_seconds(
            self.trace.scaled(compute * beside),
            lambda nbytes: network * self.network.seconds(nbytes, n),
            cap_mb=self.trial.bucket_cap_mb,
            accumulation_steps=self.trial.accumulation_steps,
        )

    def contention_at(self, n: int) -> Estimate:
        """Contention at the nearest measured number of replicas on one machine; 1 if unknown."""
        together = min(n, self.network.ranks_per_node)
        if together == 1 or not self.contention:
            return single_value(1.0, "×")
        return self.contention[min(self.contention, key=lambda n: abs(math.log(n / together)))]

    def row(self, n: int) -> ProjectedRow:
        """A group size; one replica needs no network, and is as measured."""
        if n == 1:
            return self.series.measured_row(1)
        beyond = self.series.beyond_one_machine(n, self.network.ranks_per_node)
        if (reason := beyond or self.network.refusal(n)) is not None:
            return ProjectedRow(group_size=n, kind="refused", reason=reason)
        seconds = self.step_seconds(n)
        compute, contention = self.series.speeds[0], self.contention_at(n)
        moved = [
            *(self.step_seconds(n, compute=end / compute.value) for end in compute.ends),
            *(self.step_seconds(n, contention=end / contention.value) for end in contention.ends),
            *(self.step_seconds(n, network=factor) for factor in self.network.factors),
        ]
        octaves = max(0.0, math.log2(n / self.series.group_sizes[-1]))
        rise = max(0.0, math.log(seconds / self.step_seconds(1))) / math.log2(n)
        scale = error_scale(rise, octaves)
        errors = [math.log(one / seconds) for one in moved]
        errors += [WITHIN_NODE.low * scale, WITHIN_NODE.high * scale]
        items = self.series.items_per_replica
        assert items is not None, "sweeps have a batch size"
        speed = n * items / seconds
        return self.series.predicted_row(n, "projected", speed, errors, self.traces)


def project_by_simulation(
    series: Series, network: Topology, group_sizes: Sequence[int]
) -> Projection:
    """A row for each group size, ascending; raises UsageError if the series cannot be simulated."""
    simulation = simulation_of(series, network)
    found = buckets(simulation.trace, simulation.trial.bucket_cap_mb)
    total = units.bytes_binary(int(sum(nbytes for _, nbytes in found)))
    contention = "as in steps without synchronization" if simulation.contention else "not at all"
    return Projection(
        series=series,
        rows=tuple(simulation.row(n) for n in sorted(set(group_sizes))),
        network=network.name,
        assumptions=(
            f"gradients ({total}) are reduced in {units.counted(len(found), 'bucket')}",
            network.assumption,
            f"replicas on one machine slow each other down {contention}",
            "larger groups have no slower stragglers than the measured ones",
            "computation and communication do not slow each other down",
            "the input pipeline is fast enough, and no replica fails",
        ),
    )


def simulation_of(series: Series, network: Topology) -> Simulation:
    """Put together the simulation of one series; raises UsageError if it cannot be simulated."""
    trial = series.trial
    assert trial is not None, "simulations are of sweeps"
    if trial.implementation not in BUCKETED:
        raise UsageError(
            f"{series.rows[0].series} cannot be simulated, only {', '.join(BUCKETED)} can; without "
            "a network, project uses a law"
        )
    if trial.comm_hook != "none":
        raise UsageError(
            f"{series.label}: a communication hook cannot be simulated; sweep without it"
        )
    alone = series.rows[0].records if series.group_sizes[0] == 1 else ()
    traces = [rank.gradient_trace for r in alone for rank in r.ranks if rank.gradient_trace]
    if not traces:
        raise UsageError(
            f"{series.label}: a simulation needs the gradient trace of group size 1; measure it "
            "with dpbench sweep --group-sizes 1,2"
        )
    trace = step_trace(traces)
    accumulated = (trial.accumulation_steps - 1) * trace.backward_end_seconds
    mean = geometric_mean([mean_rank_step_seconds(record) for record in alone], unit="s").value
    contention = {}
    for row in series.rows:
        steps = [free for r in row.records if (free := free_communication_seconds(r)) is not None]
        if row.group_size > 1 and steps:
            contention[row.group_size] = geometric_mean([one / mean for one in steps], unit="×")
    return Simulation(
        series=series,
        network=network,
        trace=trace.scaled(mean / (trace.step_seconds + accumulated)),
        traces=len(traces),
        trial=trial,
        contention=contention,
    )

"""Which bucket cap a measured configuration should have, and what that would gain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from dpbench.analysis.communication.collective_cost import CollectiveCost
from dpbench.analysis.communication.curve import CollectiveCurve, find
from dpbench.analysis.configuration import ConfigurationSummary
from dpbench.analysis.estimate import Estimate, LogMean, mean
from dpbench.analysis.simulation.bucket_sizes import (
    CapResult,
    Simulate,
    simulate_cap,
    sweep_caps,
)
from dpbench.analysis.simulation.buckets import Bucket
from dpbench.analysis.simulation.inputs import SimulationInputs
from dpbench.analysis.simulation.overlap import simulate
from dpbench.analysis.simulation.stragglers import expected_maximum
from dpbench.analysis.simulation.trace import single_steps, step_trace

WORTH = 0.01
"""Share of a step; a simulation does not tell less than that apart."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CapSummary:
    """What a cap makes of a step: means over the traces, or over the steps of the only one."""

    cap_mb: float | None
    """None: what the implementation takes by itself; infinity: one bucket."""
    buckets: tuple[Bucket, ...]
    step_seconds: Estimate
    exposed_seconds: Estimate
    gain: Estimate
    """Share of the present step that it saves; taken trace by trace, so that what they differ in
    as a whole drops out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BucketAdvice:
    """One measured configuration with its buckets as they are, and as they could be."""

    row: ConfigurationSummary
    inputs: SimulationInputs
    present: CapSummary
    others: tuple[CapSummary, ...]
    """By rising cap; caps that make the same buckets as another one are left out."""
    recommended: CapSummary
    """That which gains most, by itself; the present one if none gains."""
    notes: tuple[str, ...]

    @property
    def is_worthwhile(self) -> bool:
        """Whether the gain is 1 % of a step or more, and its whole interval a gain."""
        gain = self.recommended.gain
        low = gain.value if gain.interval is None else gain.interval[0]
        return gain.value >= WORTH and low > 0

    @property
    def measured_step_seconds(self) -> Estimate | None:
        """Of the row, with the present buckets."""
        speed, samples = self.row.throughput, self.inputs.trial.effective_batch_size
        if speed is None:
            return None
        low, high = speed.interval or (None, None)
        return replace(
            speed,
            value=samples / speed.value,
            low=None if high is None else samples / high,
            high=None if not low else samples / low,
            unit="s",
        )


def advise_buckets(
    row: ConfigurationSummary,
    inputs: SimulationInputs,
    cost: CollectiveCost,
    curves: Sequence[CollectiveCurve] = (),
) -> BucketAdvice:
    """Simulates the caps for a row of a sweep, of two ranks or more; `inputs` are of its trial.

    `curves` may hold one of broadcasts, which then is what sending buffers costs.

    Raises:
        UsageError: nothing supports the cost of a collective at this group size.
    """
    run, notes = _simulation(row, inputs, cost, curves)
    single = len(inputs.traces) == 1
    each = single_steps(inputs.traces[0]) if single else [step_trace([t]) for t in inputs.traces]
    cap_mb = inputs.trial.bucket_cap_mb
    before = [simulate_cap(trace, cap_mb, run) for trace in each]

    def summary(result: CapResult) -> CapSummary:
        after = [simulate_cap(trace, result.cap_mb, run) for trace in each]
        return _summary(result, before, after, of_steps=single and len(each) > 1)

    present = simulate_cap(inputs.trace, cap_mb, run)
    others = [r for r in sweep_caps(inputs.trace, run) if r.buckets != present.buckets]
    summaries = [summary(present), *map(summary, others)]
    return BucketAdvice(
        row=row,
        inputs=inputs,
        present=summaries[0],
        others=tuple(summaries[1:]),
        recommended=max(summaries, key=lambda one: one.gain.value),
        notes=(*inputs.notes, *notes, *cost.assumptions),
    )


def _simulation(
    row: ConfigurationSummary,
    inputs: SimulationInputs,
    cost: CollectiveCost,
    curves: Sequence[CollectiveCurve],
) -> tuple[Simulate, tuple[str, ...]]:
    """A step at the row's group size, and what it takes for granted."""
    notes = []
    contention = inputs.slowdown(row.group_size)
    if contention is None:
        notes.append(
            "contention was not measured (there is no independent at this group size): replicas "
            "are taken to compute as fast together as one does alone"
        )
    backend = inputs.trial.backend
    broadcast = find(curves, collective="broadcast", backend=backend, group_size=row.group_size)
    if inputs.trace.buffer_bytes and broadcast is None:
        notes.append(
            "buffers are sent at the start of a step in the time of an all-reduce of their size, "
            "as broadcasts were not measured"
        )
    stragglers = expected_maximum(inputs.noise, row.group_size) if inputs.noise else 1.0
    run = partial(
        simulate,
        cost=partial(cost.seconds, group_size=row.group_size),
        lost_share=cost.lost_share,
        stretch=cost.stretch,
        fill=cost.fill_seconds if inputs.fills_buckets else None,
        broadcast=None if broadcast is None else broadcast.seconds_at,
        accumulation_steps=inputs.trial.accumulation_steps,
        slowdown=(contention or 1.0) * stragglers,
    )
    return run, tuple(notes)


def _summary(
    result: CapResult, before: Sequence[CapResult], after: Sequence[CapResult], *, of_steps: bool
) -> CapSummary:
    was = [float(one.step.step_seconds) for one in before]
    seconds = [float(one.step.step_seconds) for one in after]
    exposed = [float(one.step.exposed_seconds) for one in after]
    shares = [1 - new / old for old, new in zip(was, seconds, strict=True)]

    def based(estimate: Estimate) -> Estimate:
        return replace(estimate, basis="step batches") if of_steps else estimate

    return CapSummary(
        cap_mb=result.cap_mb,
        buckets=result.buckets,
        step_seconds=based(LogMean.of_runs(seconds).estimate("s")),
        exposed_seconds=based(mean(exposed, unit="s")),
        gain=based(mean(shares, unit="of the step")),
    )

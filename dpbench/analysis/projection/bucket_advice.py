"""The best bucket cap for a configuration, and its gain."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from dpbench import units
from dpbench.analysis.configuration import ConfigurationSummary
from dpbench.analysis.estimate import Estimate, LogMean, inverse, mean, t_quantile
from dpbench.analysis.laws.band import CONFIDENCE
from dpbench.analysis.projection.inputs import SimulationInputs
from dpbench.analysis.projection.series import Series
from dpbench.analysis.projection.simulation import (
    Bucket,
    CapResult,
    StepTrace,
    ideal_buckets,
    simulate_cap,
    single_steps,
    step_trace,
    sweep_caps,
)
from dpbench.analysis.projection.step_model import MeanStep, swings
from dpbench.analysis.provenance import Provenance
from dpbench.errors import UsageError

WORTH = 0.01
"""Smallest share of a step that is worth advice; a simulation cannot resolve less."""

Steps = list[MeanStep]
"""Steps as measured; then with each input at either end of its interval."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CapSummary:
    """Step with a given cap: for the median trace, with the spread over the traces, or over the
    steps of the only one."""

    cap_mb: float | None
    """The cap; None means the implementation's default; infinity means one bucket."""
    buckets: tuple[Bucket, ...]
    step_seconds: Estimate
    exposed_seconds: Estimate
    gain: Estimate
    """Saved share of the present step. Both steps have the same traces and inputs, so their common
    variation cancels."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BucketAdvice:
    """A series at one group size with its present buckets and possible others."""

    series: Series
    group_size: int
    present: CapSummary
    others: tuple[CapSummary, ...]
    """Other caps in rising order; caps that make the same buckets as another one are left out."""
    recommended: CapSummary
    """The cap with the largest gain; the present one if none gains."""
    notes: tuple[str, ...]

    @property
    def inputs(self) -> SimulationInputs:
        return self.series.inputs

    @property
    def row(self) -> ConfigurationSummary | None:
        """The row measured with the present buckets, on the same network."""
        return self.series.measured(self.group_size)

    @property
    def kind(self) -> Provenance:
        return self.series.simulated_kind(self.group_size)

    @property
    def label(self) -> str:
        """Label of the trial with that group size: "ddp/gloo ×2, batch 32"."""
        trial = self.series.trial
        many = replace(trial, group_size=self.group_size, devices=trial.devices * self.group_size)
        return many.label

    @property
    def is_worthwhile(self) -> bool:
        """Whether the gain is at least 1 % of a step, its whole interval a gain, and larger than
        the observed error of the simulation."""
        gain = self.recommended.gain
        low = gain.value if gain.interval is None else gain.interval[0]
        return gain.value >= max(WORTH, self.seen_error) and low > 0

    @property
    def seen_error(self) -> float:
        """Relative error of the simulated step at the nearest measured group size."""
        return math.expm1(self.series.model_error(self.group_size))

    @property
    def measured_step_seconds(self) -> Estimate | None:
        """Measured step seconds of the row, with the present buckets."""
        if self.row is None or self.row.throughput is None:
            return None
        samples = self.series.items_per_replica * self.group_size
        return inverse(self.row.throughput).scaled(samples, unit="s")


def advise_buckets(series: Series, group_size: int) -> BucketAdvice:
    """Simulate the caps for a series at a group size of two or more, as `project` does.

    Raises:
        UsageError: nothing supports the cost of a collective at this group size.
    """
    if (reason := series.refusal(group_size)) is not None:
        raise UsageError(reason)
    cap_mb = series.cap_mb
    cases = series.spread_at(group_size).cases()

    def run(trace: StepTrace, buckets: Sequence[Bucket]) -> Steps:
        model = replace(series.model, trace=trace, buckets=tuple(buckets))
        return model.mean_steps(group_size, cases)

    each, of_steps = _traces(series)
    before = [simulate_cap(trace, cap_mb, run).step for trace in each]
    present = simulate_cap(series.model.trace, cap_mb, run)

    def summary(result: CapResult[Steps]) -> CapSummary:
        after = [simulate_cap(trace, result.cap_mb, run).step for trace in each]
        return _summary(result, present.step, before, after, of_steps=of_steps)

    others = [r for r in sweep_caps(series.model.trace, run) if r.buckets != present.buckets]
    summaries = [summary(present), *map(summary, others)]
    return BucketAdvice(
        series=series,
        group_size=group_size,
        present=summaries[0],
        others=tuple(summaries[1:]),
        recommended=max(summaries, key=lambda one: one.gain.value),
        notes=_notes(series, group_size),
    )


def _traces(series: Series) -> tuple[list[StepTrace], bool]:
    """One trace per repetition, or the steps of the only one; anchored like the series."""
    traces = series.inputs.traces
    of_steps = len(traces) == 1 and len(traces[0].step_seconds) > 1
    each = single_steps(traces[0]) if of_steps else [step_trace([trace]) for trace in traces]
    return [trace.scaled(series.anchor) for trace in each], of_steps


def _notes(series: Series, group_size: int) -> tuple[str, ...]:
    notes = [*series.inputs.notes]
    if series.model.replicas_per_node != 1 and group_size not in series.inputs.contention:
        notes.append(
            f"contention of {group_size} replicas was not measured (there is no independent at "
            f"this group size): computing takes {series.model.contention_at(group_size):.3g} times "
            "as long as that of one alone"
        )
    if series.model.trace.buffer_bytes:
        notes.append(series.network.broadcast_assumption)
    return (*notes, *_closed_form(series, group_size), *series.network.assumptions)


def _closed_form(series: Series, group_size: int) -> Iterator[str]:
    """The optimum of equal buckets, as a check on the search."""
    trace, label = series.model.trace, f"{series.label}, {group_size:,} replicas"
    latency = series.network.seconds(1.0, group_size)
    transfer = series.network.seconds(trace.total_bytes, group_size) - latency
    if min(latency, transfer, trace.backward_seconds) <= 0:
        return
    best = ideal_buckets(
        total_bytes=trace.total_bytes,
        backward_seconds=trace.backward_seconds * series.model.contention_at(group_size),
        latency_seconds=latency,
        bytes_per_second=trace.total_bytes / transfer,
    )
    count = max(1, round(best.count))
    yield (
        f"{label}: gradients that got ready evenly, on a network of {units.seconds(latency)} a "
        "collective that disturbs no computing, would be sent best in "
        f"{units.counted(count, 'bucket')} of {units.bytes_binary(trace.total_bytes // count)}, "
        f"{units.seconds(best.exposed_seconds)} exposed"
    )


def _summary(
    result: CapResult[Steps],
    present: Steps,
    before: Sequence[Steps],
    after: Sequence[Steps],
    *,
    of_steps: bool,
) -> CapSummary:
    gains = [1 - new.seconds / old.seconds for new, old in zip(result.step, present, strict=True)]
    pairs = zip(after, before, strict=True)
    of_traces = [1 - new[0].seconds / old[0].seconds for new, old in pairs]

    def around(value: float, spread: Estimate) -> Estimate:
        """The simulation of the median trace, which `project` shows, with that spread."""
        low, high = spread.interval or (None, None)
        return replace(
            spread,
            value=value,
            low=None if low is None else value + low - spread.value,
            high=None if high is None else value + high - spread.value,
            basis="step batches" if of_steps else spread.basis,
        )

    steps = LogMean.of_runs([one[0].seconds for one in after]).estimate("s")
    exposed = mean([one[0].exposed_seconds for one in after], unit="s")
    spread = mean(of_traces, unit="of the step")
    return CapSummary(
        cap_mb=result.cap_mb,
        buckets=result.buckets,
        step_seconds=around(
            result.step[0].seconds, _widened(steps, [one.seconds for one in result.step])
        ),
        exposed_seconds=around(
            result.step[0].exposed_seconds,
            _widened(exposed, [one.exposed_seconds for one in result.step]),
        ),
        gain=around(gains[0], _widened(spread, gains)),
    )


def _widened(spread: Estimate, cases: Sequence[float]) -> Estimate:
    """The spread over traces, widened by the uncertainty of the inputs; both at the confidence of
    bands.

    Args:
        cases: the value as measured, then with each input at either end of its interval.
    """
    below, above = swings(cases)
    half = 0.0
    if spread.half_width is not None:
        freedom = spread.sample_size - 1
        half = spread.half_width * t_quantile(freedom, CONFIDENCE)
        half /= t_quantile(freedom, spread.confidence)
    elif not (below or above):
        return spread  # the uncertainty is unknown
    return replace(
        spread,
        low=spread.value - math.hypot(below, half),
        high=spread.value + math.hypot(above, half),
        confidence=CONFIDENCE,
    )

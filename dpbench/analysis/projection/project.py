"""Results for any number of replicas, measured or simulated, and the assumptions behind them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import log2

from dpbench import units
from dpbench.analysis.configuration import ConfigurationSummary
from dpbench.analysis.estimate import Estimate, inverse
from dpbench.analysis.laws.band import CONFIDENCE, published_misspecification
from dpbench.analysis.projection.series import Series
from dpbench.analysis.projection.simulation import caps_bytes
from dpbench.analysis.projection.step_model import (
    EXACT,
    NOISY_STEPS,
    MeanStep,
    part_band,
    step_band,
)
from dpbench.analysis.projection.stragglers import StragglerNoise, rare_delay
from dpbench.analysis.provenance import PredictedRow, Provenance
from dpbench.analysis.scaling import BASELINE
from dpbench.errors import UsageError
from dpbench.specs.traits import BACKENDS, IMPLEMENTATIONS


@dataclass(frozen=True, kw_only=True, slots=True)
class Simulated:
    """Simulation result at a group size, whether measured or not."""

    kind: Provenance
    """Kind of the source; never "measured": see `Series.simulated_kind`."""
    step_seconds: Estimate
    efficiency: Estimate
    exposed_seconds: Estimate
    straggler_seconds: Estimate
    steps: tuple[MeanStep, ...]
    """The steps behind these numbers, one for each of the cases of `Series.spread_at`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProjectedRow(PredictedRow):
    """Speed at one group size."""

    step_seconds: Estimate | None = None
    throughput: Estimate | None = None
    efficiency: Estimate | None = None
    exposed_seconds: Estimate | None = None
    """Seconds that communication adds to a step."""
    straggler_seconds: Estimate | None = None
    """Seconds that waiting for the slowest replica adds; simulated even if the step was
    measured."""
    simulated: Simulated | None = None

    @property
    def simulation_error(self) -> float | None:
        """Simulated ÷ measured step time - 1, if both are known and n > 1."""
        if self.kind != "measured" or self.group_size == 1:
            return None
        if self.simulated is None or self.step_seconds is None:
            return None
        return self.simulated.step_seconds.value / self.step_seconds.value - 1


def project(series: Series, group_sizes: Sequence[int]) -> tuple[ProjectedRow, ...]:
    """A row for each group size, in rising order."""
    return tuple(_row(series, n) for n in sorted(set(group_sizes)))


def simulate_at(series: Series, group_size: int) -> Simulated:
    """Simulate a group size; raises UsageError if it is refused."""
    if (reason := series.refusal(group_size)) is not None:
        raise UsageError(reason)
    cases = series.spread_at(group_size).cases()
    steps = series.model.mean_steps(group_size, cases)
    alone = series.model.mean_steps(1, cases)
    octaves = max(0.0, log2(group_size / series.measured_sizes[-1]))
    size = len(series.inputs.traces)
    error = series.model_error(group_size)

    def band(values: list[float]) -> Estimate:
        return step_band(values, octaves, sample_size=size, model_error=error)

    # Step relative to that of a replica alone; the inverse is the efficiency.
    lost = [one.seconds / base.seconds for one, base in zip(steps, alone, strict=True)]
    return Simulated(
        kind=series.simulated_kind(group_size),
        step_seconds=band([one.seconds for one in steps]),
        efficiency=replace(inverse(band(lost)), unit="of linear"),
        exposed_seconds=part_band([one.exposed_seconds for one in steps], sample_size=size),
        straggler_seconds=part_band([one.straggler_seconds for one in steps], sample_size=size),
        steps=tuple(steps),
    )


def _row(series: Series, group_size: int) -> ProjectedRow:
    refusal = series.refusal(group_size)
    simulated = None if refusal else simulate_at(series, group_size)
    measured = series.measured(group_size)
    if measured is not None:
        return _measured_row(series, measured, simulated)
    if simulated is not None:
        return _simulated_row(series, group_size, simulated)
    return ProjectedRow(group_size=group_size, kind="refused", reason=refusal)


def _measured_row(
    series: Series, measured: ConfigurationSummary, simulated: Simulated | None
) -> ProjectedRow:
    assert measured.throughput is not None
    n = measured.group_size
    efficiency = measured.efficiency
    if n == 1:
        efficiency = replace(BASELINE, unit="of linear")
    return ProjectedRow(
        group_size=n,
        kind="measured",
        throughput=measured.throughput,
        step_seconds=inverse(measured.throughput).scaled(series.items_per_replica * n, unit="s"),
        efficiency=efficiency,
        exposed_seconds=measured["exposed_communication_seconds"] if n > 1 else None,
        straggler_seconds=None if simulated is None or n == 1 else simulated.straggler_seconds,
        simulated=simulated,
    )


def _simulated_row(series: Series, group_size: int, simulated: Simulated) -> ProjectedRow:
    items = series.items_per_replica * group_size
    return ProjectedRow(
        group_size=group_size,
        kind=simulated.kind,
        step_seconds=simulated.step_seconds,
        throughput=inverse(simulated.step_seconds).scaled(items, unit=f"{series.item}/s"),
        efficiency=simulated.efficiency,
        exposed_seconds=simulated.exposed_seconds,
        straggler_seconds=simulated.straggler_seconds,
        simulated=simulated,
    )


def assumptions(series: Series, largest: int, machine: str) -> tuple[str, ...]:
    """Assumptions for one series; `largest` is the largest requested group size, `machine` the one
    that computed."""
    return (
        _compute(series, machine),
        _buckets(series),
        *_buffers(series),
        *series.network.assumptions,
        *_sharing(series),
        *_wrapper(series),
        *_without_interval(series),
        "no replica fails or is replaced, no checkpoint is written, and the input pipeline keeps "
        "up as it did for one replica",
        *series.inputs.notes,
        *_unseen(series.inputs.noise, largest),
    )


def band_meaning() -> str:
    """Meaning of the ends of a simulated number's interval."""
    law = published_misspecification().beyond
    return (
        "intervals of measured numbers are 95 % over repetitions, those of simulated ones a "
        f"{units.fixed_percent(CONFIDENCE)} band: computing, communication, contention and the "
        "deviation of stragglers each moved to both ends of its own interval (means over "
        f"{NOISY_STEPS:,} noisy steps); how far the simulation of the nearest measured group was "
        f"off; and the error of a law beyond the data, which makes a step exp({law.low:g} r) to "
        f"exp({law.high:g} r) times as long, r² the doublings beyond the largest measured group "
        f"size; {law.hold_outs} hold-outs of published fits showed that error, and that "
        "simulations have it too is assumed; what collectives and computing cost each other, and "
        "filling buckets, count as measured, without an interval"
    )


def _compute(series: Series, machine: str) -> str:
    inputs = series.inputs
    steps = inputs.traces[0].step_seconds
    counted = f"{units.counted(len(steps), 'step')} × {len(inputs.traces)}"
    return (
        f"computing is as traced with {inputs.trace_source} on {machine} ({counted}), times "
        f"{series.anchor:.3g} to be the mean step of its timed windows"
    )


def _buckets(series: Series) -> str:
    cap, first = caps_bytes(series.cap_mb)
    sizes = [bucket.nbytes for bucket in series.model.buckets]
    first_words = "" if first is None else f", the first of {units.bytes_binary(first)}"
    largest = series.network.largest_bytes
    beyond = (
        f"; beyond the largest message measured, {units.bytes_binary(largest)}, the bandwidth stays"
        if largest is not None and series.network.wire_share * max(sizes) > largest
        else ""
    )
    return (
        f"gradients of {units.bytes_binary(sum(sizes))} travel in "
        f"{units.counted(len(sizes), 'bucket')} of up to {units.bytes_binary(cap)}{first_words}"
        f"{beyond}"
    )


def _sharing(series: Series) -> Iterable[str]:
    model = series.model
    nodes = model.replicas_per_node
    place = "every machine holds as many replicas as the one that was measured"
    if BACKENDS[series.trial.backend].one_host:
        place = "all replicas are on one machine with as many cores as they take"
    if nodes == 1:
        yield "every node has 1 replica, which computes as one alone on the machine traced"
        return
    if nodes is not None:
        place = f"every node has {nodes} replicas"
    if not model.contention:
        yield f"{place}, which do not slow each other's computing down: no `independent` rows tell"
        return
    listed = ", ".join(f"{n} take {f:.3g} ×" for n, f in sorted(model.contention.items()))
    yield (
        f"{place}; they slow each other's computing down as `independent` copies did ({listed} as "
        "long as one), more of them as the most measured"
    )


def _buffers(series: Series) -> Iterable[str]:
    if size := series.model.trace.buffer_bytes:
        yield (
            f"at the start of a step buffers of {units.bytes_binary(size)} are sent; "
            f"{series.network.broadcast_assumption}"
        )


def _wrapper(series: Series) -> Iterable[str]:
    # A group of one rank has a LocalBucket in place of a Bucket.
    if IMPLEMENTATIONS[series.trial.implementation].ours:
        yield (
            "a measured step contains all of the wrapper's own Python, a simulated one as much as "
            "the trace of one replica, and the measured collectives, contain: one replica fills no "
            "buckets, and nothing is added for that"
        )


def _without_interval(series: Series) -> Iterable[str]:
    spread, noisy = series.spread, series.inputs.noise is not None
    parts = (
        ("computing", spread.compute, True),
        ("communication", spread.communication, series.network.uncertainty is None),
        ("contention", spread.contention, bool(series.model.contention)),
        ("stragglers", spread.noise, noisy),
    )
    if missing := [name for name, ends, used in parts if used and ends == EXACT]:
        yield f"the error of {', '.join(missing)} is unknown and not in the band"


def _unseen(noise: StragglerNoise | None, largest: int) -> Iterable[str]:
    """Assumptions that the notes of the inputs cannot state, as they do not know the number of
    replicas."""
    if noise is not None and noise.rank_steps:
        share = rare_delay(1 / noise.rank_steps, 1.0, largest)
        yield (
            f"events rarer than 1 in {noise.rank_steps:,} rank-steps were not seen; one that rare "
            f"would strike {units.percent(share)} of the steps of {largest:,} replicas"
        )

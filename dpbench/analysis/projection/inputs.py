"""Inputs for simulating a series, from a stored sweep: trace, stragglers, contention.

A trace only simulates the model that it was taken of, so all traces, and the bytes that a step of
the series reduced, must belong to the same gradients.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dpbench import units
from dpbench.analysis.configuration import by_configuration, usable_repetitions
from dpbench.analysis.diagnosis.factors import References
from dpbench.analysis.estimate import Estimate, Floats, LogMean
from dpbench.analysis.projection.simulation import StepTrace, step_trace, tracing_overhead
from dpbench.analysis.projection.stragglers import StragglerNoise, calibrated_noise
from dpbench.analysis.resources import reduced_bytes_per_step
from dpbench.analysis.throughput import mean_rank_step_seconds, throughput_mean
from dpbench.errors import UsageError
from dpbench.records.trial import GradientTrace, TrialRecord
from dpbench.specs import TrialSpec
from dpbench.specs.traits import INDEPENDENT, SINGLE
from dpbench.specs.trial import BUCKETED


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulationInputs:
    """Inputs for one series at one batch size per replica."""

    trial: TrialSpec
    """Trial as asked for."""
    trace: StepTrace
    """Trace of one micro-step, whatever the trial accumulates."""
    traces: tuple[GradientTrace, ...]
    """Traces, one per repetition; `trace` is the median of their steps."""
    trace_source: str
    """The configuration that was traced: "ddp/gloo ×1, batch 32"."""
    alone: LogMean
    """Items per second of the traced trials, in their timed windows."""
    items_per_sample: int
    fills_buckets: bool
    """Whether gradients must still be copied into buckets, which the trace does not include."""
    tracing_overhead: Estimate
    noise: StragglerNoise | None
    """Noise; None if no group of two ranks or more was measured without synchronization."""
    contention: dict[int, Estimate]
    """Step of one of n concurrent copies ÷ that of one alone, by n."""
    notes: tuple[str, ...]


def simulation_inputs(records: Sequence[TrialRecord], trial: TrialSpec) -> SimulationInputs:
    """Inputs from the records of a sweep for the series, the batch size and the model of `trial`.

    The trace is that of the same implementation at group size 1, as it includes the cost of
    wrapping the module, else that of `single`.

    Raises:
        UsageError: nothing was traced, or only another model than the trial's.
    """
    usable = [
        record
        for group in by_configuration(records).values()
        for record in usable_repetitions(group)
        if _same_work(record.trial, trial)
    ]
    usable = _compared_alike(usable, trial)
    traced, notes = _traced(usable, trial)
    traces = {_name(record): trace for record in traced if (trace := _trace(record))}
    require_same_gradients(traces)
    _require_trace_of_series(usable, trial, traces)
    noise, of_noise = _noise(usable, trial)
    contention = _contention(usable, trial.replica_batch_sizes[0])
    return SimulationInputs(
        trial=trial,
        trace=step_trace(list(traces.values())),
        traces=tuple(traces.values()),
        trace_source=traced[0].trial.label,
        alone=throughput_mean(traced),
        items_per_sample=traced[0].items_per_sample,
        fills_buckets=_fills_buckets(trial.implementation, traced[0].trial.implementation),
        tracing_overhead=tracing_overhead(list(traces.values())),
        noise=noise,
        contention=contention,
        notes=(*notes, *of_noise, *_of_contention(contention)),
    )


def _same_work(other: TrialSpec, trial: TrialSpec) -> bool:
    """Whether both train the same model in the same way, apart from the batch and the group."""
    kinds = {device.partition(":")[0] for device in (*other.devices, *trial.devices)}
    return (
        other.workload == trial.workload
        and other.threads_per_replica == trial.threads_per_replica
        and other.accumulation_steps == trial.accumulation_steps
        and len(kinds) == 1
    )


def _compared_alike(records: list[TrialRecord], trial: TrialSpec) -> list[TrialRecord]:
    """The traced trials with as many steps and threads, if the sweep compares them and has such."""
    alike = [
        record
        for record in records
        if all(record.trial.setting(name) == trial.setting(name) for name in trial.compared)
    ]
    return alike if any(_trace(record) for record in alike) else records


def _traced(
    usable: Sequence[TrialRecord], trial: TrialSpec
) -> tuple[list[TrialRecord], tuple[str, ...]]:
    """The repetitions of the best traced configuration, and notes on it."""
    batch = trial.replica_batch_sizes[0]
    having = [r for r in usable if r.trial.replica_batch_sizes == (batch,) and _trace(r)]
    own = [r for r in having if r.trial.implementation == trial.implementation]
    series = [r for r in own if r.trial.backend == trial.backend]
    single = [r for r in having if r.trial.implementation == SINGLE]
    if not (best := series or own or single):
        raise UsageError(_nothing_traced(trial, batch))
    configuration = best[-1].trial.configuration
    note = (
        f"the trace of {configuration.label} stands in for {trial.implementation} at group size 1, "
        "which was not traced; what wrapping the module costs is not in it"
    )
    chosen = [record for record in best if record.trial.configuration == configuration]
    return chosen, () if own else (note,)


def _fills_buckets(implementation: str, traced: str) -> bool:
    """Whether buckets still have to be filled. torch's DistributedDataParallel fills its buckets at
    group size 1 too, where dpbench's has nothing to send; with gradient_as_bucket_view
    (torch-ddp-static) there is nothing to fill."""
    return implementation != "torch-ddp-static" and traced != "torch-ddp"


def _nothing_traced(trial: TrialSpec, batch: int) -> str:
    sizes = ",".join(str(n) for n in (1, max(2, trial.group_size)))
    command = (
        f"dpbench sweep --arch {shlex.quote(trial.workload.architecture)} --implementations "
        f"single,{trial.implementation} --backends {trial.backend} --group-sizes {sizes} "
        f"--batch-sizes {batch}"
    )
    return (
        f"no gradient trace of {trial.implementation} or single at group size 1, batch {batch}, on "
        f"which the simulation of {trial.label} stands; measure it with {command}"
    )


def _trace(record: TrialRecord) -> GradientTrace | None:
    if record.trial.group_size != 1:
        return None
    return next((rank.gradient_trace for rank in record.ranks), None)


def _name(record: TrialRecord) -> str:
    return f"{record.trial.label} (repetition {record.trial.repetition})"


def _require_trace_of_series(
    usable: Sequence[TrialRecord], trial: TrialSpec, traces: dict[str, GradientTrace]
) -> None:
    """Require that the trace fits the series, as far as its trials recorded the bytes they
    reduced."""
    if trial.implementation not in BUCKETED:
        return
    series = [
        record
        for record in usable
        if record.trial.implementation == trial.implementation and record.trial.group_size > 1
    ]
    if reduced := reduced_bytes_per_step(series):
        label, trace = next(iter(traces.items()))
        require_trace_of(trace, label, reduced)


def _noise(
    usable: Sequence[TrialRecord], trial: TrialSpec
) -> tuple[StragglerNoise | None, tuple[str, ...]]:
    """Noise from the largest group of the series, else of `independent`."""
    batch = trial.replica_batch_sizes[0]
    own = [
        (record, table)
        for record in usable
        if (record.trial.implementation, record.trial.backend)
        == (trial.implementation, trial.backend)
        if (table := _without_sync(record)) is not None
    ]
    copies = [
        (record, table)
        for record in usable
        if record.trial.implementation == INDEPENDENT
        if (table := _table(rank.timed.step_seconds for rank in record.ranks)) is not None
    ]
    for found in (own, copies):
        chosen = [(r, t) for r, t in found if r.trial.replica_batch_sizes[0] == batch]
        if chosen:
            largest = max(record.trial.group_size for record, _ in chosen)
            widest = [(r, t) for r, t in chosen if r.trial.group_size == largest]
            noise = calibrated_noise([table for _, table in widest])
            return noise, (_of_noise(noise, widest[0][0].trial.label),)
    return None, (
        "stragglers were not measured, as no group of 2 ranks or more ran without synchronization "
        f"at batch {batch}: every rank is taken to be as fast as the one that was traced",
    )


def _of_noise(noise: StragglerNoise, label: str) -> str:
    rare = (
        f"rare events in {units.percent(noise.rare_probability)} of a rank's steps"
        if noise.rare_probability
        # Rule of three: an event not seen in N cases has a probability below 3/N, at 95 %.
        else f"no rare event, so that they strike fewer than {units.percent(3 / noise.rank_steps)}"
    )
    return (
        f"stragglers: steps of {label} without synchronization differ by "
        f"{units.percent(noise.rank_cv)} between ranks, {units.percent(noise.time_cv)} from step "
        f"to step in common, {units.percent(noise.residual_cv)} besides (coefficients of "
        f"variation, {units.counted(noise.rank_steps, 'rank-step')}); {rare}; beyond what was "
        "seen the tail is taken to be lognormal"
    )


def _without_sync(record: TrialRecord) -> Floats | None:
    windows = [rank.without_sync for rank in record.ranks if rank.without_sync is not None]
    if len(windows) < len(record.ranks):
        return None
    return _table(window.step_seconds for window in windows)


def _table(ranks: Iterator[tuple[float, ...]]) -> Floats | None:
    """Times of shape (ranks, steps); None unless there are at least two of both, all measured."""
    rows = list(ranks)
    steps = min(len(row) for row in rows)
    table = np.array([row[:steps] for row in rows])
    return table if min(table.shape) >= 2 and table.min() > 0 else None


def _contention(usable: Sequence[TrialRecord], batch: int) -> dict[int, Estimate]:
    """Mean step of `independent` copies ÷ that of `single`, both in the same repetition and with
    that batch size each."""
    references = References(usable)
    ratios: dict[int, list[float]] = {}
    for record in usable:
        if record.trial.implementation != INDEPENDENT or record.trial.group_size == 1:
            continue
        if set(record.trial.replica_batch_sizes) != {batch}:
            continue
        if (single := references.single(record.trial, batch)) is not None:
            ratio = mean_rank_step_seconds(record) / mean_rank_step_seconds(single)
            ratios.setdefault(record.trial.group_size, []).append(ratio)
    return {n: LogMean.of_runs(found).estimate("×") for n, found in sorted(ratios.items())}


def _of_contention(contention: dict[int, Estimate]) -> Iterator[str]:
    for n, factor in contention.items():
        low, high = factor.ends
        if factor.value < 1 or low < 1:
            yield (
                f"{n} copies at once took {factor.value:.3g} ({low:.3g} to {high:.3g}) times as "
                "long as one: that they slow each other down was not shown, and the factor counts "
                "all the same"
            )


def require_same_gradients(traces: Mapping[str, GradientTrace]) -> None:
    """Raise UsageError unless all traces, given by name, have the same gradients."""
    (first, expected), *others = traces.items()
    for label, trace in others:
        if (difference := _difference(trace, expected)) is not None:
            raise UsageError(
                f"the gradient trace of {label} is of another model or dtype than that of {first}: "
                f"{difference}; measure both with the same model in one sweep"
            )


def require_trace_of(trace: GradientTrace, label: str, reduced_bytes: int) -> None:
    """Raise UsageError unless a step with these gradients reduces `reduced_bytes`."""
    total = sum(trace.gradient_bytes)
    if total != reduced_bytes:
        raise UsageError(
            f"the gradient trace of {label} is of another model or dtype than the sweep's: its "
            f"gradients are {total:,} bytes, and a step reduces {reduced_bytes:,}; measure both in "
            "one sweep"
        )


def _difference(trace: GradientTrace, expected: GradientTrace) -> str | None:
    """The first difference, in words; None if there is none."""
    for name, size, dtype, other, other_size, other_dtype in zip(
        trace.parameters,
        trace.gradient_bytes,
        trace.gradient_dtypes,
        expected.parameters,
        expected.gradient_bytes,
        expected.gradient_dtypes,
        strict=False,
    ):
        if name != other:
            return f"got the gradient of {name}, expected that of {other}"
        if dtype != other_dtype:
            return f"got {name} in {dtype}, expected {other_dtype}"
        if size != other_size:
            return f"got {size:,} bytes of {name}, expected {other_size:,}"
    got, wanted = len(trace.parameters), len(expected.parameters)
    return None if got == wanted else f"got {got} gradients, expected {wanted}"

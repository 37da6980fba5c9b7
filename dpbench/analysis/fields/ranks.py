"""The fields of a rank of a trial, and of its steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean

from dpbench.analysis.fields.field import Field, ReadField
from dpbench.records import Phases, RankMeasurement, Window

WINDOWS = TIMED, WITHOUT_SYNC = ("timed", "without_sync")


def _mean_step(window: Window | None) -> float | None:
    return fmean(window.step_seconds) if window and window.step_seconds else None


def _phase(phases: Phases | None, part: Callable[[Phases], Sequence[float]]) -> float | None:
    return fmean(part(phases)) if phases and part(phases) else None


RANK_FIELDS: tuple[ReadField[RankMeasurement], ...] = (
    ReadField(
        key="rank",
        kind="integer",
        meaning="Number of the rank, from 0.",
        read=lambda r: r.rank,
        required=True,
    ),
    ReadField(
        key="pid",
        kind="integer",
        meaning="Process that it ran in.",
        read=lambda r: r.pid,
        required=True,
    ),
    ReadField(
        key="device",
        kind="text",
        meaning="Device that it computed on.",
        read=lambda r: r.device,
        required=True,
    ),
    ReadField(
        key="setup_seconds",
        meaning="Time from the rank's start to its first warmup step.",
        read=lambda r: r.setup_seconds,
        required=True,
    ),
    ReadField(
        key="warmup_steps",
        kind="integer",
        meaning="Steps before the timed window.",
        read=lambda r: r.warmup_steps,
    ),
    ReadField(
        key="timed_steps",
        kind="integer",
        meaning="Steps of the timed window.",
        read=lambda r: len(r.timed.step_seconds),
    ),
    ReadField(
        key="timed_seconds",
        meaning="Length of the timed window.",
        read=lambda r: r.timed.seconds,
    ),
    ReadField(
        key="samples",
        kind="integer",
        meaning="Samples consumed in the timed window.",
        read=lambda r: r.timed.samples,
    ),
    ReadField(
        key="step_seconds",
        meaning="Mean timed step.",
        read=lambda r: _mean_step(r.timed),
    ),
    ReadField(
        key="step_without_sync_seconds",
        meaning="Mean step without gradient synchronization.",
        read=lambda r: _mean_step(r.without_sync),
    ),
    ReadField(
        key="data_seconds",
        meaning="Mean time of an instrumented step until the batch is on the device.",
        read=lambda r: _phase(r.phases, lambda p: p.data_seconds),
    ),
    ReadField(
        key="forward_seconds",
        meaning="Mean time of forward and loss in an instrumented step.",
        read=lambda r: _phase(r.phases, lambda p: p.forward_seconds),
    ),
    ReadField(
        key="backward_seconds",
        meaning="Mean time of backward in an instrumented step, exposed communication included.",
        read=lambda r: _phase(r.phases, lambda p: p.backward_seconds),
    ),
    ReadField(
        key="backward_without_sync_seconds",
        meaning="Mean time of backward in an instrumented step without gradient synchronization.",
        read=lambda r: _phase(r.phases_without_sync, lambda p: p.backward_seconds),
    ),
    ReadField(
        key="optimizer_seconds",
        meaning="Mean time of the optimizer in an instrumented step.",
        read=lambda r: _phase(r.phases, lambda p: p.optimizer_seconds),
    ),
    ReadField(
        key="peak_host_memory_bytes",
        kind="integer",
        meaning="Largest resident set of the process.",
        read=lambda r: r.peak_host_memory_bytes,
    ),
    ReadField(
        key="peak_device_memory_bytes",
        kind="integer",
        meaning="Largest allocation on the device during warmup and timed window.",
        read=lambda r: r.peak_device_memory_bytes,
    ),
    ReadField(
        key="peak_reserved_memory_bytes",
        kind="integer",
        meaning="Largest device memory that torch's allocator held.",
        read=lambda r: r.peak_reserved_memory_bytes,
    ),
    ReadField(
        key="energy_joules",
        meaning="Energy of the rank's devices over the timed window.",
        read=lambda r: r.energy_joules,
    ),
    ReadField(
        key="clock_hertz",
        meaning="Clock of the device after the timed window.",
        read=lambda r: r.clock_hertz,
    ),
    ReadField(
        key="reduced_bytes_per_step",
        kind="integer",
        meaning="Bytes that the rank hands to all-reduce in a step.",
        read=lambda r: r.reduced_bytes_per_step,
    ),
    ReadField(
        key="collectives_per_step",
        meaning="Collectives that the rank takes part in during a step.",
        read=lambda r: r.collectives_per_step,
    ),
    ReadField(
        key="sample_checksum",
        kind="text",
        meaning="Hash of the samples consumed in the timed window.",
        read=lambda r: r.sample_checksum,
    ),
    ReadField(
        key="initial_checksum",
        kind="text",
        meaning="Hash of the parameters before warmup.",
        read=lambda r: r.initial_checksum,
    ),
    ReadField(
        key="final_checksum",
        kind="text",
        meaning="Hash of the parameters after the timed window.",
        read=lambda r: r.final_checksum,
    ),
)

STEP_FIELDS: tuple[Field, ...] = (
    Field(key="rank", kind="integer", meaning="Number of the rank, from 0.", required=True),
    Field(
        key="window",
        kind="text",
        meaning="timed, or without_sync: the same number of steps without synchronization.",
        required=True,
        choices=WINDOWS,
    ),
    Field(
        key="step",
        kind="integer",
        meaning="Number of the step in its window, from 0.",
        required=True,
    ),
    Field(key="seconds", meaning="Length of the step on this rank.", required=True),
    Field(
        key="loss",
        meaning="Mean loss of the rank's samples of the step.",
        finite=False,
    ),
    Field(key="samples", kind="integer", meaning="Samples that the rank consumed in the step."),
)
"""Without a way to read them: `tidy` makes millions of these rows, a window at once."""

"""What a tidy row holds of one trial, and of one rank of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from statistics import fmean

from dpbench.analysis import convergence, throughput
from dpbench.analysis.fields import Field, Plain, ReadField, boolean, integer, number, text
from dpbench.analysis.memory import memory_imbalance, peak_memory, peak_reserved_memory
from dpbench.analysis.outcome import effective_status
from dpbench.analysis.setting_fields import SETTINGS
from dpbench.placement import host_counts
from dpbench.records import Phases, RankMeasurement, Status, TrialRecord, Window
from dpbench.specs import TrialSpec


def _if_completed(read: Callable[[TrialRecord], Plain]) -> Callable[[TrialRecord], Plain]:
    """None unless the trial completed and measured a window: only then has it a speed."""

    def read_completed(record: TrialRecord) -> Plain:
        usable = effective_status(record) is Status.COMPLETED and throughput.is_measured(record)
        return read(record) if usable else None

    return read_completed


def _of_losses(
    measure: Callable[[Sequence[float], float], float],
) -> Callable[[TrialRecord], Plain]:
    """Of the losses of the timed steps and the seconds that they took; None unless all finite."""

    def read(record: TrialRecord) -> Plain:
        losses = convergence.losses(record)
        if not losses or not convergence.is_finite(losses):
            return None
        return measure(losses, throughput.elapsed_seconds(record))

    return _if_completed(read)


def _verified(record: TrialRecord) -> bool | None:
    return None if record.verification is None else record.verification.passed


def _peak_memory(record: TrialRecord) -> int | None:
    found = peak_memory([record])
    return None if found is None else found.bytes


def _mean_step(window: Window | None) -> float | None:
    return fmean(window.step_seconds) if window and window.step_seconds else None


def _phase(phases: Phases | None, part: Callable[[Phases], Sequence[float]]) -> float | None:
    return fmean(part(phases)) if phases and part(phases) else None


def _of_trial(field: ReadField[TrialSpec]) -> ReadField[TrialRecord]:
    described = {one.name: getattr(field, one.name) for one in fields(Field)}
    return ReadField(**described, read=lambda record: field.read(record.trial))


IDENTITY: tuple[ReadField[TrialRecord], ...] = (
    text(
        "trial_id",
        "Hash of the trial's specification; joins the levels.",
        lambda r: r.trial.trial_id,
        required=True,
    ),
    text(
        "implementation",
        "What trains the replicas; settings not at their default follow in brackets.",
        lambda r: r.trial.implementation_label,
        required=True,
    ),
    text("backend", "How gradients travel.", lambda r: r.trial.backend, required=True),
    integer(
        "group_size",
        "Replicas that train together.",
        lambda r: r.trial.group_size,
        required=True,
    ),
    integer(
        "batch_size",
        "Samples per replica and micro-step; in strong scaling, per group.",
        lambda r: r.trial.batch_size,
        required=True,
    ),
    integer(
        "repetition",
        "Number of the repetition, from 0.",
        lambda r: r.trial.repetition,
        required=True,
    ),
    text(
        "status",
        "How the trial ended; only a completed one carries a speed.",
        lambda r: effective_status(r).value,
        required=True,
        choices=tuple(status.value for status in Status),
    ),
)
"""The keys that every level below the configuration begins with."""

WORKLOAD: tuple[ReadField[TrialRecord], ...] = (
    integer(
        "global_batch_size",
        "Samples of all replicas per micro-step.",
        lambda r: r.trial.global_batch_size,
        required=True,
    ),
    text(
        "nodes",
        "Replicas on each host, as in 2+1; missing where there was one.",
        lambda r: host_counts(r.trial.nodes) or None,
    ),
    text(
        "scaling",
        "weak: each replica keeps its batch; strong: they share one.",
        lambda r: r.trial.scaling,
        required=True,
    ),
    text(
        "architecture",
        "The model.",
        lambda r: r.trial.workload.architecture,
        required=True,
    ),
    text("dataset", "What it trains on.", lambda r: r.trial.workload.dataset, required=True),
    number(
        "learning_rate",
        "Learning rate that ran, scaled by its rule.",
        lambda r: r.trial.learning_rate,
        required=True,
    ),
    *map(_of_trial, SETTINGS),
    integer("seed", "Seed of the workload.", lambda r: r.trial.workload.seed, required=True),
    integer(
        "threads_per_replica",
        "Threads that a replica computes with.",
        lambda r: r.trial.threads_per_replica,
        required=True,
    ),
    text(
        "environment_id",
        "Names the file in environments/ that says on what it ran.",
        lambda r: r.environment_id,
        required=True,
    ),
    text(
        "started_utc",
        "Start of the trial, ISO 8601.",
        lambda r: r.started_utc,
        required=True,
    ),
    text("reason", "Why it is not simply completed.", lambda r: r.reason),
)

MEASURED: tuple[ReadField[TrialRecord], ...] = (
    boolean(
        "verified",
        "Whether its gradients agreed with those of one process; missing if not compared.",
        _verified,
    ),
    number(
        "max_relative_error",
        "Largest relative error of a gradient against one process.",
        lambda r: None if r.verification is None else r.verification.max_relative_error,
    ),
    number(
        "duration_seconds",
        "Wall time of the whole trial, launch included.",
        lambda r: r.duration_seconds,
        required=True,
    ),
    text("item", "What a sample is called: images, tokens.", lambda r: r.item, required=True),
    number(
        "elapsed_seconds",
        "Length of the timed window on the slowest rank.",
        _if_completed(throughput.elapsed_seconds),
    ),
    integer(
        "timed_steps",
        "Steps of the timed window.",
        _if_completed(lambda r: min(len(rank.timed.step_seconds) for rank in r.ranks)),
    ),
    integer(
        "samples",
        "Samples that all ranks consumed in the timed window.",
        _if_completed(lambda r: sum(rank.timed.samples for rank in r.ranks)),
    ),
    number(
        "images_per_second",
        "Samples ÷ elapsed seconds, whatever the item is called.",
        _if_completed(throughput.throughput),
    ),
    number(
        "exposed_communication_seconds",
        "Mean step with gradient synchronization − without it.",
        _if_completed(throughput.exposed_communication_seconds),
    ),
    number("initial_loss", "Loss of the first timed step.", _of_losses(lambda own, _: own[0])),
    number("final_loss", "Loss of the last timed step.", _of_losses(lambda own, _: own[-1])),
    number(
        "loss_delta",
        "Initial loss − final loss.",
        _of_losses(lambda own, _: convergence.loss_delta(own)),
    ),
    number(
        "loss_delta_per_step",
        "Loss delta ÷ timed steps.",
        _of_losses(lambda own, _: convergence.loss_delta_per_step(own)),
    ),
    number(
        "loss_delta_per_second",
        "Loss delta ÷ elapsed seconds.",
        _of_losses(convergence.loss_delta_per_second),
    ),
    number(
        "rank_skew",
        "(Slowest − fastest) ÷ median rank's mean step, as a fraction.",
        _if_completed(throughput.rank_skew),
    ),
    integer(
        "slowest_rank", "The rank with the longest steps.", _if_completed(throughput.slowest_rank)
    ),
    integer(
        "peak_memory_bytes",
        "Largest memory over ranks: allocated on the device, else resident on the host.",
        _peak_memory,
    ),
    integer(
        "peak_reserved_memory_bytes",
        "Largest device memory over ranks that torch's allocator held.",
        lambda r: peak_reserved_memory([r]),
    ),
    number(
        "memory_imbalance",
        "Largest ÷ mean peak memory over ranks; missing for a single rank.",
        lambda r: memory_imbalance([r]),
    ),
    number(
        "flops_per_item",
        "Floating-point operations of forward and backward for one item.",
        lambda r: r.flops_per_item,
    ),
)
TRIAL_FIELDS: tuple[ReadField[TrialRecord], ...] = (*IDENTITY, *WORKLOAD, *MEASURED)

RANK_FIELDS: tuple[ReadField[RankMeasurement], ...] = (
    integer("rank", "Number of the rank, from 0.", lambda r: r.rank, required=True),
    integer("pid", "Process that it ran in.", lambda r: r.pid, required=True),
    text("device", "Where it computed.", lambda r: r.device, required=True),
    number(
        "setup_seconds",
        "From the rank's start to its first warmup step.",
        lambda r: r.setup_seconds,
        required=True,
    ),
    integer("warmup_steps", "Steps before the timed window.", lambda r: r.warmup_steps),
    integer("timed_steps", "Steps of the timed window.", lambda r: len(r.timed.step_seconds)),
    number("timed_seconds", "Length of the timed window.", lambda r: r.timed.seconds),
    integer("samples", "Samples consumed in the timed window.", lambda r: r.timed.samples),
    number("step_seconds", "Mean timed step.", lambda r: _mean_step(r.timed)),
    number(
        "step_without_sync_seconds",
        "Mean step without gradient synchronization.",
        lambda r: _mean_step(r.without_sync),
    ),
    number(
        "data_seconds",
        "Mean time of an instrumented step until the batch is on the device.",
        lambda r: _phase(r.phases, lambda p: p.data_seconds),
    ),
    number(
        "forward_seconds",
        "Mean time of forward and loss in an instrumented step.",
        lambda r: _phase(r.phases, lambda p: p.forward_seconds),
    ),
    number(
        "backward_seconds",
        "Mean time of backward in an instrumented step, exposed communication included.",
        lambda r: _phase(r.phases, lambda p: p.backward_seconds),
    ),
    number(
        "backward_without_sync_seconds",
        "The same without gradient synchronization.",
        lambda r: _phase(r.phases_without_sync, lambda p: p.backward_seconds),
    ),
    number(
        "optimizer_seconds",
        "Mean time of the optimizer in an instrumented step.",
        lambda r: _phase(r.phases, lambda p: p.optimizer_seconds),
    ),
    integer(
        "peak_host_memory_bytes",
        "Largest resident set of the process.",
        lambda r: r.peak_host_memory_bytes,
    ),
    integer(
        "peak_device_memory_bytes",
        "Largest allocation on the device during warmup and timed window.",
        lambda r: r.peak_device_memory_bytes,
    ),
    integer(
        "peak_reserved_memory_bytes",
        "Largest device memory that torch's allocator held.",
        lambda r: r.peak_reserved_memory_bytes,
    ),
    number(
        "energy_joules",
        "Energy of the rank's devices over the timed window.",
        lambda r: r.energy_joules,
    ),
    number("clock_hertz", "Clock of the device after the timed window.", lambda r: r.clock_hertz),
    integer(
        "reduced_bytes_per_step",
        "Bytes that the rank hands to all-reduce in a step.",
        lambda r: r.reduced_bytes_per_step,
    ),
    number(
        "collectives_per_step",
        "Collectives that the rank takes part in during a step.",
        lambda r: r.collectives_per_step,
    ),
    text(
        "sample_checksum",
        "Hash of the samples consumed in the timed window.",
        lambda r: r.sample_checksum,
    ),
    text(
        "initial_checksum",
        "Hash of the parameters before warmup.",
        lambda r: r.initial_checksum,
    ),
    text(
        "final_checksum",
        "Hash of the parameters after the timed window.",
        lambda r: r.final_checksum,
    ),
)

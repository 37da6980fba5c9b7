"""The fields that hold measurements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dpbench.analysis import throughput
from dpbench.analysis.configuration import ConfigurationSummary, effective_status
from dpbench.analysis.estimate import Estimate, mean
from dpbench.analysis.fields.field import Metric, Reading, SweepField, Value, arithmetic, stored
from dpbench.analysis.resources import (
    collectives_per_step,
    cpu_seconds_per_step,
    joules_per_item,
    memory_imbalance,
    page_faults_per_step,
    peak_memory,
    peak_reserved_memory,
    reduced_bytes_per_step,
)
from dpbench.analysis.steps import StepSummary
from dpbench.records.trial import Status, TrialRecord


@dataclass(frozen=True, slots=True)
class Share:
    """A count and its total."""

    count: int
    total: int

    @property
    def plain(self) -> int:
        return self.count


def if_completed(read: Reading) -> Reading:
    """The reading, or None unless the trial completed and measured a window: otherwise it has no
    speed."""

    def read_completed(record: TrialRecord) -> float | None:
        usable = effective_status(record) is Status.COMPLETED and throughput.is_measured(record)
        return read(record) if usable else None

    return read_completed


def _step_percentile(percent: float) -> Reading:
    def read(record: TrialRecord) -> float:
        """Interpolate between the two nearest steps, like `numpy.percentile`, at a tenth of its
        cost."""
        steps = np.sort(throughput.step_seconds(record))
        return float(np.interp(percent / 100 * (len(steps) - 1), np.arange(len(steps)), steps))

    return if_completed(read)


def _peak_memory_bytes(record: TrialRecord) -> int | None:
    peak = peak_memory([record])
    return None if peak is None else peak.bytes


def mean_over(read: Reading, unit: str) -> Callable[[Sequence[TrialRecord]], Value]:
    def over(usable: Sequence[TrialRecord]) -> Estimate | None:
        values = [value for value in map(read, usable) if value is not None]
        return mean(values, unit=unit) if values else None

    return over


def _most_often_slowest(usable: Sequence[TrialRecord]) -> int | None:
    ranks = Counter(r for r in map(throughput.slowest_rank, usable) if r is not None)
    return ranks.most_common(1)[0][0] if ranks else None


def _of_steps(
    read: Callable[[StepSummary], Value],
) -> Callable[[ConfigurationSummary], Value]:
    return lambda row: None if row.steps is None else read(row.steps)


def _percentile(percent: int, meaning: str) -> Metric:
    def read(steps: StepSummary) -> float:
        value: float = getattr(steps, f"p{percent}_seconds")
        return value

    return Metric(
        key=f"step_seconds_p{percent}",
        meaning=meaning,
        unit="s",
        header=f"Step p{percent}",
        style="duration",
        row=_of_steps(read),
        run=_step_percentile(percent),
        in_trial_rows=False,
        higher_is_better=False,
    )


SPEED_FIELDS: tuple[SweepField, ...] = (
    Metric(
        key="images_per_second",
        meaning="Items that all replicas consumed in the timed window ÷ the slowest rank's wall "
        "time, from the opening barrier until its device has finished.",
        unit="items/s",
        ends=True,
        header="{Item}/s",
        style="rate",
        shown="always",
        row=stored("throughput"),
        run=if_completed(throughput.throughput),
        higher_is_better=True,
    ),
    SweepField(
        key="images_per_second_sample_size",
        kind="integer",
        meaning="Number of values behind images_per_second and its interval.",
        row=lambda row: None if row.throughput is None else row.throughput.sample_size,
    ),
    SweepField(
        key="images_per_second_basis",
        kind="text",
        meaning="What the interval covers: repetitions, step batches of one repetition, or a "
        "single value.",
        row=lambda row: None if row.throughput is None else row.throughput.basis,
    ),
    SweepField(
        key="duration_seconds",
        meaning="Time that a fixed amount of work took, as published.",
        unit="s",
        ends=True,
        header="Time",
        style="duration",
        shown="if measured",
        row=stored("duration"),
    ),
    SweepField(
        key="speedup",
        meaning="Throughput of n replicas ÷ throughput of one, with the same implementation and "
        "backend, at the same batch per replica (weak scaling) or the same global batch (strong).",
        ends=True,
        header="Speedup",
        style="ratio",
        shown="always",
        row=stored("speedup"),
    ),
    SweepField(
        key="absolute_speedup",
        meaning="Throughput ÷ throughput of `single`, the plain module on one device, at the same "
        "batch size.",
        ends=True,
        header="Absolute speedup",
        wrapped="Absolute\nspeedup",
        style="ratio",
        row=stored("absolute_speedup"),
    ),
    Metric(
        key="efficiency",
        meaning="Speedup ÷ number of replicas, where 100 % is linear scaling.",
        unit="of linear",
        ends=True,
        header="Efficiency",
        style="percent",
        shown="always",
        row=stored("efficiency"),
        run=if_completed(throughput.throughput),
        in_trial_rows=False,
        higher_is_better=True,
        relative=True,
        is_speed=False,
    ),
    Metric(
        key="exposed_communication_seconds",
        meaning="Mean step time with gradient synchronization − without it, where each step takes "
        "as long as its slowest rank, from two windows of equal length in the same processes: "
        "seconds of communication that overlap does not hide, without waiting for stragglers.",
        unit="s",
        ends=True,
        header="Exposed comm",
        wrapped="Exposed\ncomm",
        style="time",
        shown="always",
        row=stored("exposed_communication_seconds"),
        run=if_completed(throughput.exposed_communication_seconds),
        over=mean_over(throughput.exposed_communication_seconds, "s"),
        higher_is_better=False,
        average=arithmetic,
        reference=throughput.slowest_rank_step_seconds,
        reference_words="mean step",
    ),
)

MACHINE_FIELDS: tuple[SweepField, ...] = (
    SweepField(
        key="flops_per_item",
        meaning="Floating-point operations of forward and backward for one item.",
        run=lambda record: record.flops_per_item,
    ),
    SweepField(
        key="flops_per_second",
        meaning="Floating-point operations of forward and backward per second, all replicas "
        "together; tables show 10⁹ per second.",
        ends=True,
        header="GFLOP/s",
        style="giga",
        row=stored("flops_per_second"),
    ),
    SweepField(
        key="mfu",
        meaning="Model FLOPs utilization: floating-point operations per second ÷ the devices' peak "
        "for the trial's number format, where a dated table has it.",
        ends=True,
        header="MFU",
        style="percent",
        shown="if measured",
        row=stored("mfu"),
    ),
    Metric(
        key="peak_memory_bytes",
        kind="integer",
        meaning="Largest memory over ranks and repetitions: allocated on the GPU during warmup and "
        "timed window, else resident on the host (whole process).",
        unit="B",
        header="Peak memory",
        wrapped="Peak\nmemory",
        style="memory",
        shown="always",
        row=stored("peak_memory_bytes"),
        run=_peak_memory_bytes,
        higher_is_better=False,
        is_speed=False,
    ),
    SweepField(
        key="peak_reserved_memory_bytes",
        kind="integer",
        meaning="Largest device memory over ranks that torch's allocator held, in use or not.",
        unit="B",
        header="Reserved memory",
        wrapped="Reserved\nmemory",
        style="memory",
        row=stored("peak_reserved_memory_bytes"),
        run=lambda record: peak_reserved_memory([record]),
        over=peak_reserved_memory,
    ),
    SweepField(
        key="memory_imbalance",
        meaning="Largest ÷ mean peak memory over ranks; missing for a single rank.",
        run=lambda record: memory_imbalance([record]),
    ),
    SweepField(
        key="joules_per_item",
        meaning="Energy of the GPUs over the timed window ÷ items, in joules, from NVML's counter.",
        ends=True,
        header="J/item",
        style="significant",
        shown="if measured",
        row=stored("joules_per_item"),
        over=joules_per_item,
    ),
)

STEPS_FIELDS: tuple[SweepField, ...] = (
    _percentile(50, "Median time of a timed step, over all steps of all repetitions."),
    _percentile(95, "Time that 95 % of the timed steps did not exceed."),
    _percentile(99, "Time that 99 % of the timed steps did not exceed."),
    SweepField(
        key="outliers",
        kind="integer",
        meaning="Timed steps more than 10 σ slower than the median (14.8 median absolute "
        "deviations), out of all timed steps; they are kept.",
        header="Outliers",
        row=_of_steps(lambda steps: Share(steps.outliers, steps.count)),
    ),
    SweepField(
        key="slowest_outlier",
        meaning="Slowest outlier ÷ the median step.",
        row=_of_steps(lambda steps: steps.slowest_outlier),
    ),
    SweepField(
        key="step_autocorrelation",
        meaning="First-order autocorrelation of the timed steps, from −1 to 1; the mean over "
        "repetitions.",
        header="Autocorrelation",
        wrapped="Autocor-\nrelation",
        style="two decimals",
        row=_of_steps(lambda steps: steps.autocorrelation),
    ),
    SweepField(
        key="steady",
        kind="text",
        meaning="Whether the timed window was in a steady state (MSER-5, a test for "
        "drift and one for changes at the end); the worst repetition.",
        header="Steady",
        row=_of_steps(lambda steps: steps.steady),
    ),
    SweepField(
        key="rank_skew",
        meaning="(Slowest − fastest) ÷ median rank's mean step without synchronization, as a "
        "fraction; where that was not measured, with it, which hides most of the skew.",
        ends=True,
        header="Rank skew",
        wrapped="Rank\nskew",
        style="percent",
        row=stored("rank_skew"),
        run=if_completed(throughput.rank_skew),
        over=mean_over(throughput.rank_skew, "of the median rank"),
    ),
    SweepField(
        key="slowest_rank",
        kind="integer",
        meaning="Rank with the longest steps; over repetitions, the one that was slowest most "
        "often.",
        header="Slowest rank",
        wrapped="Slowest\nrank",
        row=stored("slowest_rank"),
        run=if_completed(throughput.slowest_rank),
        over=_most_often_slowest,
    ),
    SweepField(
        key="reduced_bytes_per_step",
        kind="integer",
        meaning="Bytes of gradients (or parameters) that a rank hands to all-reduce in a step.",
        unit="B",
        header="Reduced/step",
        wrapped="Reduced\n/step",
        style="traffic",
        row=stored("reduced_bytes_per_step"),
        over=reduced_bytes_per_step,
    ),
    SweepField(
        key="collectives_per_step",
        meaning="Collectives that a rank takes part in during a step.",
        header="Collectives/step",
        wrapped="Collectives\n/step",
        row=stored("collectives_per_step"),
        over=collectives_per_step,
    ),
    SweepField(
        key="repetitions",
        kind="integer",
        meaning="Completed repetitions, each in fresh processes.",
        required=True,
        header="Repetitions",
        wrapped="Repe-\ntitions",
        row=stored("repetitions"),
    ),
    SweepField(
        key="timed_steps",
        kind="integer",
        meaning="Steps of the timed window of each repetition.",
        header="Timed steps",
        wrapped="Timed\nsteps",
        row=stored("timed_steps"),
        run=if_completed(lambda r: min(len(rank.timed.step_seconds) for rank in r.ranks)),
    ),
)

TRIAL_FIELDS: tuple[SweepField, ...] = (
    Metric(
        key="setup_seconds",
        meaning="Time from the start of the slowest rank to its first warmup step.",
        unit="s",
        run=lambda record: max(rank.setup_seconds for rank in record.ranks),
        in_trial_rows=False,
        higher_is_better=False,
    ),
    Metric(
        key="duration_seconds",
        meaning="Wall time of the whole trial, launch included.",
        unit="s",
        run=lambda record: record.duration_seconds,
        run_required=True,
        higher_is_better=False,
        counts_steps=True,
    ),
    SweepField(
        key="elapsed_seconds",
        meaning="Length of the timed window on the slowest rank.",
        unit="s",
        run=if_completed(throughput.elapsed_seconds),
    ),
    SweepField(
        key="samples",
        kind="integer",
        meaning="Samples that all ranks consumed in the timed window.",
        run=if_completed(lambda r: sum(rank.timed.samples for rank in r.ranks)),
    ),
)


USAGE_FIELDS: tuple[SweepField, ...] = (
    SweepField(
        key="page_faults_per_step",
        meaning="Minor page faults of a rank's process in a step of the timed window, the mean "
        "over ranks: memory that the C library gave back to the kernel and takes again.",
        header="Page faults/step",
        wrapped="Page\nfaults\n/step",
        style="significant",
        row=stored("page_faults_per_step"),
        run=if_completed(page_faults_per_step),
        over=mean_over(page_faults_per_step, "page faults"),
    ),
    SweepField(
        key="cpu_seconds_per_step",
        meaning="Processor time of a rank's process in a step of the timed window, all its threads "
        "together, the mean over ranks; without the processes that load its data.",
        unit="s",
        header="CPU time/step",
        wrapped="CPU time\n/step",
        style="time",
        row=stored("cpu_seconds_per_step"),
        run=if_completed(cpu_seconds_per_step),
        over=mean_over(cpu_seconds_per_step, "s"),
    ),
)

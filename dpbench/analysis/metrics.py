"""What can be compared: a number per run, and in which direction it is better.

The numbers themselves are defined where they belong (`throughput`, `convergence`, `memory`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dpbench.analysis import convergence, throughput
from dpbench.analysis.estimate import Estimate, LogMean, mean
from dpbench.analysis.loss_agreement import loss_mean
from dpbench.analysis.memory import peak_memory
from dpbench.analysis.repetitions import by_configuration
from dpbench.analysis.summary import usable_repetitions
from dpbench.records import TrialRecord
from dpbench.specs import TrialSpec

Reading = Callable[[TrialRecord], float | None]
Average = Callable[[Sequence[float], str], Estimate]
"""From the values of runs and their unit."""


def _geometric(values: Sequence[float], unit: str) -> Estimate:
    """Of what is compared by its ratio, unless a value has no logarithm."""
    if min(values) <= 0:
        return mean(values, unit=unit)
    return LogMean.of_runs(values).estimate(unit)


def _arithmetic(values: Sequence[float], unit: str) -> Estimate:
    return mean(values, unit=unit)


def _of_losses(values: Sequence[float], unit: str) -> Estimate:
    return loss_mean(values, unit=unit)


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """A number of one run, None where it was not measured.

    Positive ones are compared by their ratio. Those that may be zero or negative have a
    `reference`: their difference is a part of the baseline's mean reference.
    """

    key: str
    unit: str
    """With "items" where the architecture's item belongs."""
    higher_is_better: bool
    description: str
    of: Reading
    """Of one run; of a metric that is `relative`, use `reader`."""
    reference: Reading | None = None
    reference_words: str = ""
    relative: bool = False
    """True where `of` counts per replica against group size 1 of the same repetition."""
    is_speed: bool = True
    """Tells whether better means faster."""
    average: Average = _geometric
    """Of the runs of one side."""
    of_losses: bool = False
    """Tells whether runs with the same seed are one sample of it."""
    counts_steps: bool = False
    """Tells whether it is another number after more steps."""

    @property
    def additive(self) -> bool:
        return self.reference is not None

    def reader(self, records: Sequence[TrialRecord]) -> Reading:
        """The metric as a function of one record out of all those of a sweep."""
        return _against_one(self.of, records) if self.relative else self.of


def _against_one(of: Reading, records: Sequence[TrialRecord]) -> Reading:
    ones = {
        _run(record.trial): record
        for spec, group in by_configuration(records).items()
        if spec.group_size == 1
        for record in usable_repetitions(group)
    }

    def read(record: TrialRecord) -> float | None:
        size = record.trial.group_size
        one = ones.get(_run(record.trial))
        if size == 1 or one is None:
            return None
        mine, alone = of(record), of(one)
        return None if mine is None or alone is None else mine / alone / size

    return read


def _run(trial: TrialSpec) -> TrialSpec:
    """What a run has in common with that of its first replica alone in the same pass."""
    return replace(trial.of_one_replica, trace_steps=0)


def _step_percentile(percent: float) -> Reading:
    def read(record: TrialRecord) -> float:
        """Between the two nearest steps, as `numpy.percentile`, at a tenth of its cost."""
        steps = np.sort(throughput.step_seconds(record))
        return float(np.interp(percent / 100 * (len(steps) - 1), np.arange(len(steps)), steps))

    return read


def _mean_step_seconds(record: TrialRecord) -> float:
    return throughput.elapsed_seconds(record) / len(throughput.step_seconds(record))


def _peak_memory_bytes(record: TrialRecord) -> float | None:
    peak = peak_memory([record])
    return None if peak is None else float(peak.bytes)


def _losses(record: TrialRecord) -> tuple[float, ...] | None:
    losses = convergence.losses(record)
    return losses if losses and convergence.is_finite(losses) else None


def _final_loss(record: TrialRecord) -> float | None:
    losses = _losses(record)
    return None if losses is None else losses[-1]


def _loss_delta_per_step(record: TrialRecord) -> float | None:
    losses = _losses(record)
    return None if losses is None else convergence.loss_delta_per_step(losses)


def _loss_delta_per_second(record: TrialRecord) -> float | None:
    losses = _losses(record)
    seconds = throughput.elapsed_seconds(record)
    return None if losses is None else convergence.loss_delta_per_second(losses, seconds)


def _first_loss_per_step(record: TrialRecord) -> float | None:
    losses = _losses(record)
    return None if losses is None else losses[0] / len(losses)


def _first_loss_per_second(record: TrialRecord) -> float | None:
    losses = _losses(record)
    return None if losses is None else losses[0] / throughput.elapsed_seconds(record)


METRICS: dict[str, Metric] = {
    metric.key: metric
    for metric in (
        Metric(
            key="images_per_second",
            unit="items/s",
            higher_is_better=True,
            description="samples of all replicas ÷ seconds of the timed window",
            of=throughput.throughput,
        ),
        Metric(
            key="efficiency",
            unit="of linear",
            higher_is_better=True,
            description="speedup ÷ group size, within the same repetition",
            of=throughput.throughput,
            relative=True,
            is_speed=False,
        ),
        Metric(
            key="exposed_communication_seconds",
            unit="s",
            higher_is_better=False,
            description="step time with synchronization - without it",
            of=throughput.exposed_communication_seconds,
            average=_arithmetic,
            reference=_mean_step_seconds,
            reference_words="mean step",
        ),
        *(
            Metric(
                key=f"step_seconds_p{percent}",
                unit="s",
                higher_is_better=False,
                description=f"{percent}th percentile of the steps of a run",
                of=_step_percentile(percent),
            )
            for percent in (50, 95, 99)
        ),
        Metric(
            key="peak_memory_bytes",
            unit="B",
            higher_is_better=False,
            description="largest over ranks, of the device if it was measured, else of the host",
            of=_peak_memory_bytes,
            is_speed=False,
        ),
        Metric(
            key="final_loss",
            unit="loss",
            higher_is_better=False,
            description="loss of the last timed step",
            of=_final_loss,
            average=_of_losses,
            is_speed=False,
            of_losses=True,
            counts_steps=True,
        ),
        Metric(
            key="loss_delta_per_step",
            unit="per step",
            higher_is_better=True,
            description="(first - last timed loss) ÷ steps",
            of=_loss_delta_per_step,
            average=_of_losses,
            reference=_first_loss_per_step,
            reference_words="first loss per step",
            is_speed=False,
            of_losses=True,
            counts_steps=True,
        ),
        Metric(
            key="loss_delta_per_second",
            unit="per s",
            higher_is_better=True,
            description="(first - last timed loss) ÷ seconds",
            of=_loss_delta_per_second,
            average=_arithmetic,
            reference=_first_loss_per_second,
            reference_words="first loss per second",
            is_speed=False,
            of_losses=True,
            counts_steps=True,
        ),
        Metric(
            key="setup_seconds",
            unit="s",
            higher_is_better=False,
            description="start of the slowest rank until its first warmup step",
            of=lambda record: max(rank.setup_seconds for rank in record.ranks),
        ),
        Metric(
            key="duration_seconds",
            unit="s",
            higher_is_better=False,
            description="wall time of a whole trial, launch included",
            of=lambda record: record.duration_seconds,
            counts_steps=True,
        ),
    )
}

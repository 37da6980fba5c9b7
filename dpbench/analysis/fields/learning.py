"""The fields about learning: losses, their rates, the time to a loss, the noise."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dpbench.analysis import throughput
from dpbench.analysis.configuration import ConfigurationSummary
from dpbench.analysis.fields.field import (
    Metric,
    Plain,
    Reading,
    SweepField,
    arithmetic,
    mean_of_losses,
    stored,
)
from dpbench.analysis.fields.measured import if_completed
from dpbench.analysis.losses import loss_curve
from dpbench.analysis.losses.loss_curve import TimeToLoss
from dpbench.records.trial import TrialRecord


def _from_losses(measure: Callable[[Sequence[float], float], float]) -> Reading:
    """A reader of the timed steps' losses and seconds; None unless all are finite."""

    def read(record: TrialRecord) -> float | None:
        losses = loss_curve.losses(record)
        if not losses or not loss_curve.is_finite(losses):
            return None
        return measure(losses, throughput.elapsed_seconds(record))

    return if_completed(read)


def _of_time_to_loss(
    read: Callable[[TimeToLoss], Plain],
) -> Callable[[ConfigurationSummary], Plain]:
    return lambda row: None if row.time_to_loss is None else read(row.time_to_loss)


LEARNING_FIELDS: tuple[SweepField, ...] = (
    SweepField(
        key="initial_loss",
        meaning="Loss of the first timed step.",
        run=_from_losses(lambda losses, _: losses[0]),
    ),
    SweepField(
        key="loss_delta",
        meaning="First timed loss − last timed loss.",
        run=_from_losses(lambda losses, _: loss_curve.loss_delta(losses)),
    ),
    Metric(
        key="loss_delta_per_step",
        meaning="(First timed loss − last timed loss) ÷ timed steps: loss per step, from two noisy "
        "mini-batches.",
        unit="per step",
        ends=True,
        header="Loss delta/step",
        wrapped="Loss delta\n/step",
        style="significant",
        row=stored("loss_delta_per_step"),
        run=_from_losses(lambda losses, _: loss_curve.loss_delta_per_step(losses)),
        higher_is_better=True,
        average=mean_of_losses,
        reference=_from_losses(lambda losses, _: losses[0] / len(losses)),
        reference_words="first loss per step",
        is_speed=False,
        of_losses=True,
        counts_steps=True,
    ),
    Metric(
        key="loss_delta_per_second",
        meaning="(First timed loss − last timed loss) ÷ seconds of the timed window: loss per "
        "second.",
        unit="per s",
        ends=True,
        header="Loss delta/s",
        wrapped="Loss\ndelta/s",
        style="significant",
        shown="always",
        row=stored("loss_delta_per_second"),
        run=_from_losses(loss_curve.loss_delta_per_second),
        higher_is_better=True,
        average=arithmetic,
        reference=_from_losses(lambda losses, seconds: losses[0] / seconds),
        reference_words="first loss per second",
        is_speed=False,
        of_losses=True,
        counts_steps=True,
    ),
    Metric(
        key="final_loss",
        meaning="Loss of the last timed step, the sample-weighted mean over ranks.",
        unit="loss",
        ends=True,
        header="Final loss",
        wrapped="Final\nloss",
        style="significant",
        shown="always",
        row=stored("final_loss"),
        run=_from_losses(lambda losses, _: losses[-1]),
        higher_is_better=False,
        average=mean_of_losses,
        is_speed=False,
        of_losses=True,
        counts_steps=True,
    ),
    SweepField(
        key="loss_slope_per_step",
        meaning="Theil–Sen slope of the losses over the timed steps: loss per step.",
        ends=True,
        header="Loss slope/step",
        wrapped="Loss slope\n/step",
        style="significant",
        row=stored("loss_slope_per_step"),
    ),
    SweepField(
        key="loss_slope_per_second",
        meaning="Theil–Sen slope of the losses × steps per second: loss per second.",
        ends=True,
        header="Loss slope/s",
        wrapped="Loss\nslope/s",
        style="significant",
        row=stored("loss_slope_per_second"),
    ),
    SweepField(
        key="final_loss_over_seeds",
        meaning="Mean of the final losses of all rows that differ in their seed alone.",
        unit="loss",
        ends=True,
        header="Final loss over seeds",
        wrapped="Final loss\nover seeds",
        style="significant",
        shown="if measured",
        row=stored("final_loss_over_seeds"),
    ),
    SweepField(
        key="time_to_loss_over_seeds_seconds",
        meaning="Mean time to loss of all rows that differ in their seed alone, on logarithms.",
        unit="s",
        ends=True,
        header="Time to loss over seeds",
        wrapped="Time to loss\nover seeds",
        style="time",
        shown="if measured",
        row=stored("time_to_loss_over_seeds"),
    ),
    SweepField(
        key="target_loss",
        meaning="Loss that time_to_loss_seconds is the time to.",
        row=_of_time_to_loss(lambda found: found.target_loss),
    ),
    SweepField(
        key="time_to_loss_seconds",
        meaning="Time from the opening of the timed window until the smoothed loss (medians of 1 % "
        "blocks, trailing mean of 5) stays at the target or below for 3 blocks.",
        unit="s",
        ends=True,
        header="Time to loss",
        wrapped="Time to\nloss",
        style="time",
        shown="if measured",
        row=stored("time_to_loss"),
    ),
    SweepField(
        key="time_to_loss_samples",
        meaning="Samples consumed until the loss was reached.",
        row=_of_time_to_loss(lambda found: None if found.samples is None else found.samples.value),
    ),
    SweepField(
        key="time_to_loss_censored",
        kind="integer",
        meaning="Repetitions that did not reach the loss.",
        row=_of_time_to_loss(lambda found: found.censored),
    ),
    SweepField(
        key="loss_at_equal_samples",
        meaning="Smoothed loss after the largest number of samples that every configuration "
        "reached.",
        ends=True,
        header="Loss at equal samples",
        wrapped="Loss, equal\nsamples",
        style="significant",
        row=stored("loss_at_equal_samples"),
    ),
    SweepField(
        key="loss_at_equal_seconds",
        meaning="Smoothed loss after the longest time that every configuration reached.",
        ends=True,
        header="Loss at equal seconds",
        wrapped="Loss, equal\nseconds",
        style="significant",
        row=stored("loss_at_equal_seconds"),
    ),
)

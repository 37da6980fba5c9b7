"""What the windows of a trial say about time: every metric is defined here, once; and what single
steps say, for diagnosis: slow first steps, and steps that are slow now and then.

All of it is about records that are `is_measured`. "Slowest rank" is the one whose window lasted
longest: training goes on when the last rank has finished. No step is dropped: throughput is that of
the whole window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from dpbench.analysis.estimate import CONFIDENCE, Estimate, Floats, geometric_mean, mean, t_quantile
from dpbench.records.trial import Status, TrialRecord, Window
from dpbench.units import CLOCK_SECONDS

MIN_SECONDS = 1e-9
OUTLIER_DEVIATIONS = 14.826
"""Median absolute deviations above the median from which a step is an outlier: ten standard
deviations of normal noise, as in hyperfine."""
MIN_JUDGED_STEPS = 10
"""Fewest steps that are judged singly: with fewer, their median deviation rests on two or three of
them, and a fifth does not hold two."""
FEW_FIRST_STEPS = 5
FIRST_STEPS_DIVISORS = (10, 5)
"""Slow steps are looked for among the first few, the first tenth and the first fifth."""
MIN_WARM_UP_SHARE = 0.01
"""Smallest part of the window's seconds that matters: a fifth of the steps that take 3 % longer
cost 0.6 %, which is not worth more warm-up steps."""


def is_measured(record: TrialRecord) -> bool:
    """Whether the record has a speed at all: it completed, with samples, and with steps of which
    each took time."""
    completed = record.status is Status.COMPLETED
    timed = [rank.timed for rank in record.ranks if completed]
    return sum(window.samples for window in timed) > 0 and all(
        min(window.seconds, *(window.step_seconds or (0.0,))) >= MIN_SECONDS for window in timed
    )


def elapsed_seconds(record: TrialRecord) -> float:
    """Seconds of the timed window on the slowest rank."""
    return max(rank.timed.seconds for rank in record.ranks)


def items(record: TrialRecord) -> int:
    """Images, tokens or rows that all ranks consumed in the timed window."""
    return sum(rank.timed.samples for rank in record.ranks) * record.facts.items_per_sample


def items_per_second(record: TrialRecord) -> float:
    """Items of all ranks in the timed window ÷ elapsed seconds."""
    return items(record) / elapsed_seconds(record)


def slowest_of_each_step(record: TrialRecord) -> Floats:
    """Seconds of each timed step on its slowest rank."""
    windows = [rank.timed.step_seconds for rank in record.ranks]
    # Ranks take the same number of steps; if one stopped early, its last steps do not exist.
    longest: Floats = np.zeros(max(map(len, windows)))
    for steps in windows:
        np.maximum(longest[: len(steps)], steps, out=longest[: len(steps)])
    return longest


def step_with_and_without_communication(record: TrialRecord) -> tuple[float, float] | None:
    """Mean step with synchronization, and the step if communication were free; None if not
    measured.

    Their difference is the exposed communication, without waiting for stragglers. Slow first steps
    count in neither: the timed window begins with synchronization, so if segments alternate, the
    first pair of them is left out. Noise can make the difference negative; it is not clipped.
    """
    ranks = (
        replace(
            rank,
            windows={mode: after_first_segment(window) for mode, window in rank.windows.items()},
        )
        for rank in record.ranks
    )
    later = replace(record, ranks=tuple(ranks))
    free = free_communication_seconds(later)
    return None if free is None else (slowest_rank_step_seconds(later), free)


def exposed_communication_seconds(record: TrialRecord) -> float | None:
    """Seconds of a step that communication adds in one trial; None if not measured."""
    steps = step_with_and_without_communication(record)
    return None if steps is None else steps[0] - steps[1]


def exposed_communication(records: Sequence[TrialRecord]) -> Estimate | None:
    """Seconds of a step that communication adds: its share of the step, as `diagnosis.factors` has
    it, × the step, so that both are above the noise or neither is; None if not measured."""
    steps = [both for r in records if (both := step_with_and_without_communication(r))]
    if not steps:
        return None
    share = mean([1 - free / step for step, free in steps], "of the step")
    return share.scaled(geometric_mean([step for step, _ in steps], "s").value, unit="s")


def after_first_segment(window: Window) -> Window:
    """The window without its first segment; unchanged if it has only one, or no time."""
    whole = sum(window.step_seconds)
    if len(window.segment_steps) < 2 or not whole:
        return window
    steps = window.step_seconds[window.segment_steps[0] :]
    seconds = window.seconds * sum(steps) / whole
    return replace(window, step_seconds=steps, seconds=seconds)


def free_communication_seconds(record: TrialRecord) -> float | None:
    """Mean step of ranks that wait for each other but whose communication takes no time.

    From the window without synchronization: the mean of the rank that happens to be slowest in
    each step there. None if not measured.
    """
    windows = unsynced_windows(record)
    if not windows:
        return None
    slowest_mean = max(window.mean_step_seconds for window in windows)
    # Ranks take the same number of steps; if one stopped early, the others' last have no partner.
    common = min(len(window.step_seconds) for window in windows)
    steps = np.array([window.step_seconds[:common] for window in windows])
    # Between two averages of parameters fast steps make up for slow ones.
    settings = record.configuration
    period = settings.sync_every if settings.traits.averages_parameters else 1
    spans = np.add.reduceat(steps, np.arange(0, common, period), axis=1)
    slowest = float(spans.mean(axis=1).max())
    if slowest < MIN_SECONDS:
        return slowest_mean
    # As a ratio, because on CUDA the host times the window and the device its steps.
    return float(spans.max(axis=0).mean()) * (slowest_mean / slowest)


def slowest_rank_step_seconds(record: TrialRecord) -> float:
    """Mean timed step of the slowest rank."""
    return max((rank.timed for rank in record.ranks), key=lambda w: w.seconds).mean_step_seconds


def unsynced_windows(record: TrialRecord) -> list[Window]:
    """The windows without synchronization of all ranks; [] unless all measured it."""
    windows = [rank.windows["unsynced"] for rank in record.ranks if "unsynced" in rank.windows]
    if any(not window.step_seconds or window.seconds < MIN_SECONDS for window in windows):
        return []
    return windows if len(windows) == len(record.ranks) else []


def rank_step_seconds(record: TrialRecord) -> list[float]:
    """Mean step of every rank, from the window in which it waits least for others."""
    windows = unsynced_windows(record) or [rank.timed for rank in record.ranks]
    return [window.mean_step_seconds for window in windows]


def rank_skew(record: TrialRecord) -> float | None:
    """(max - min) ÷ median over ranks of the mean step without synchronization.

    Without that window the mean step with synchronization is used, which hides most of the skew:
    the fast ranks wait for the slow ones. None for a single rank.
    """
    steps = rank_step_seconds(record)
    if len(steps) < 2 or not (middle := median(steps)):
        return None
    return (max(steps) - min(steps)) / middle


@dataclass(frozen=True, kw_only=True, slots=True)
class WarmUp:
    """Slow steps at the start of a configuration's windows."""

    steps: int
    change: float
    """Median of these steps ÷ median of the rest - 1."""
    share: Estimate
    """Share of all steps' seconds that would be saved if they were like the rest."""


def warm_up(windows: Sequence[Floats]) -> WarmUp | None:
    """Whether the timed windows of a configuration begin with slow steps; `windows` has an array of
    step seconds for each repetition.

    The first steps of a window are compared with the rest: ln(median of the first ones ÷ median of
    the rest), a value for each repetition, with a t test over the repetitions. Medians
    are not moved by single slow steps. Repetitions are independent, which the steps of one window
    are not.

    In simulation (50 steps that vary by 5 %, 4 repetitions), steady windows are flagged in at most
    5 %, also where steps are correlated or have spikes; five first steps ten times as slow are
    found in 100 %, and five first steps that take 50 % longer in at least 90 %.

    Returns:
        None if the windows do not begin with slow steps, are short, or are of one repetition.
    """
    length = min(map(len, windows), default=0)
    if length < MIN_JUDGED_STEPS or len(windows) < 2:
        return None
    tried = {length // fraction for fraction in FIRST_STEPS_DIVISORS}
    if max(tried) > FEW_FIRST_STEPS:
        tried.add(FEW_FIRST_STEPS)
    # Two or three tests, which share the level.
    quantile = t_quantile(len(windows) - 1, 1 - (1 - CONFIDENCE) / len(tried))
    changes = []
    for first in sorted(tried):
        logs = np.log([np.median(window[:first]) / np.median(window[first:]) for window in windows])
        error = float(logs.std(ddof=1)) / len(logs) ** 0.5
        change = float(logs.mean())
        if change > quantile * error and change * first >= MIN_WARM_UP_SHARE * length:
            changes.append((change, first))
    if not changes:
        return None
    change, first = max(changes)
    # Further steps that are nearer to these than to the rest belong to them.
    ratios = np.median([window[:length] / np.median(window[first:]) for window in windows], axis=0)
    steps = max(first, int(np.argmin(ratios > np.exp(change / 2))))
    lost = [1 - float(window[steps:].mean() / window.mean()) for window in windows]
    share = mean(lost, unit="of the step")
    return WarmUp(steps=steps, change=float(np.expm1(change)), share=share)


def outlier_limit(steps: Floats) -> float:
    """Seconds above which a step is an outlier; infinite for too few steps."""
    if len(steps) < MIN_JUDGED_STEPS:
        return np.inf
    middle = np.median(steps)
    deviation = np.median(np.abs(steps - middle))
    return float(middle + OUTLIER_DEVIATIONS * deviation + CLOCK_SECONDS)


@dataclass(frozen=True, kw_only=True, slots=True)
class SlowSteps:
    """Steps that take far longer than the others, now and then: a pause of the model or the
    machine. They make a mean noisy and hide in every factor."""

    interval: float
    """One step in so many is slow."""
    extra_seconds: float
    """Seconds by which a slow step exceeds the median step."""
    share: Estimate
    """Share of all steps' seconds that would be saved if slow steps were like the median."""


def slow_steps(records: Sequence[TrialRecord], skipped: int = 0) -> SlowSteps | None:
    """The slow steps of the usable repetitions of one configuration; None if there are none.

    Args:
        skipped: first steps of each window that are left out, as they are slow for another reason.
    """
    windows = [slowest_of_each_step(record)[skipped:] for record in records]
    extra = [steps[steps > outlier_limit(steps)] - np.median(steps) for steps in windows]
    count = sum(map(len, extra))
    if not count:
        return None
    shares = [float(more.sum() / steps.sum()) for more, steps in zip(extra, windows, strict=True)]
    return SlowSteps(
        interval=sum(map(len, windows)) / count,
        extra_seconds=float(np.concatenate(extra).mean()),
        share=mean(shares, unit="of the step"),
    )

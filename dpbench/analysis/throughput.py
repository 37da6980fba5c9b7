"""Metrics of a trial's windows about time: every one is defined here, once.

All of them take a record that `is_measured`. "Slowest rank" is the one whose window lasted
longest: training goes on when the last rank has finished.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean, median

import numpy as np

from dpbench.analysis.estimate import Floats
from dpbench.records.trial import TrialRecord, Window
from dpbench.specs.traits import IMPLEMENTATIONS

SHORTEST_SECONDS = 1e-9


def is_measured(record: TrialRecord) -> bool:
    """Whether the record has a speed at all: steps, seconds and samples."""
    timed = [rank.timed for rank in record.ranks]
    return sum(window.samples for window in timed) > 0 and all(
        min(window.seconds, sum(window.step_seconds)) >= SHORTEST_SECONDS for window in timed
    )


def elapsed_seconds(record: TrialRecord) -> float:
    """Seconds of the timed window on the slowest rank."""
    return max(rank.timed.seconds for rank in record.ranks)


def items(record: TrialRecord) -> int:
    """Images, tokens or rows that all ranks consumed in the timed window."""
    return sum(rank.timed.samples for rank in record.ranks) * record.items_per_sample


def items_per_second(record: TrialRecord) -> float:
    """Items of all ranks in the timed window ÷ elapsed seconds."""
    return items(record) / elapsed_seconds(record)


def step_seconds(record: TrialRecord) -> Floats:
    """Seconds of each timed step on its slowest rank."""
    windows = [rank.timed.step_seconds for rank in record.ranks]
    # Ranks take the same number of steps; if one stopped early, its last steps do not exist.
    longest: Floats = np.zeros(max(map(len, windows)))
    for steps in windows:
        np.maximum(longest[: len(steps)], steps, out=longest[: len(steps)])
    return longest


def exposed_communication_seconds(record: TrialRecord) -> float | None:
    """Mean step with synchronization - the step if communication were free; None if not measured.

    This is the exposed part; waiting for stragglers is not included, nor are slow first steps: the
    timed window begins with synchronization, so if segments alternate, the first pair of them is
    left out. Noise can make it negative; it is not clipped.
    """
    ranks = (
        replace(
            rank,
            timed=after_first_segment(rank.timed),
            without_sync=rank.without_sync and after_first_segment(rank.without_sync),
        )
        for rank in record.ranks
    )
    later = replace(record, ranks=tuple(ranks))
    free = free_communication_seconds(later)
    return None if free is None else slowest_rank_step_seconds(later) - free


def after_first_segment(window: Window) -> Window:
    """The window without its first segment; unchanged if it has only one."""
    if len(window.segment_steps) < 2:
        return window
    steps = window.step_seconds[window.segment_steps[0] :]
    seconds = window.seconds * sum(steps) / sum(window.step_seconds)
    return replace(window, step_seconds=steps, seconds=seconds)


def free_communication_seconds(record: TrialRecord) -> float | None:
    """Mean step of ranks that wait for each other but whose communication takes no time.

    From the window without synchronization: the mean of the rank that happens to be slowest in
    each step there. None if not measured.
    """
    if (without := steps_without_sync(record)) is None:
        return None
    windows = [rank.without_sync for rank in record.ranks if rank.without_sync is not None]
    # Ranks take the same number of steps; if one stopped early, the others' last have no partner.
    common = min(len(window.step_seconds) for window in windows)
    steps = np.array([window.step_seconds[:common] for window in windows])
    # Between two averages of parameters fast steps make up for slow ones.
    trial = record.trial
    period = trial.sync_every if IMPLEMENTATIONS[trial.implementation].averages_parameters else 1
    spans = np.add.reduceat(steps, np.arange(0, common, period), axis=1)
    slowest = float(spans.mean(axis=1).max())
    if slowest < SHORTEST_SECONDS:
        return max(without)
    # As a ratio, because on CUDA the host times the window and the device its steps.
    return float(spans.max(axis=0).mean()) * (max(without) / slowest)


def mean_step_seconds(window: Window) -> float:
    """Length of a window ÷ its steps."""
    return window.seconds / len(window.step_seconds)


def slowest_rank_step_seconds(record: TrialRecord) -> float:
    """Mean timed step of the slowest rank."""
    return mean_step_seconds(max((rank.timed for rank in record.ranks), key=lambda w: w.seconds))


def mean_rank_step_seconds(record: TrialRecord) -> float:
    """Mean timed step, as the mean over ranks."""
    return fmean(mean_step_seconds(rank.timed) for rank in record.ranks)


def steps_without_sync(record: TrialRecord) -> list[float] | None:
    """Mean step seconds of every rank without synchronization; None unless all measured it."""
    windows = [rank.without_sync for rank in record.ranks if rank.without_sync is not None]
    if len(windows) < len(record.ranks):
        return None
    if not all(window.step_seconds and window.seconds >= SHORTEST_SECONDS for window in windows):
        return None
    return [mean_step_seconds(window) for window in windows]


def rank_step_seconds(record: TrialRecord) -> list[float]:
    """Mean step of every rank, from the window in which it waits least for others."""
    return steps_without_sync(record) or [mean_step_seconds(rank.timed) for rank in record.ranks]


def rank_skew(record: TrialRecord) -> float | None:
    """(max - min) ÷ median over ranks of the mean step without synchronization.

    Without that window the mean step with synchronization is used, which hides most of the skew:
    the fast ranks wait for the slow ones. None for a single rank.
    """
    steps = rank_step_seconds(record)
    if len(steps) < 2 or not (middle := median(steps)):
        return None
    return (max(steps) - min(steps)) / middle

"""What a trial's windows say of speed: every metric of time is defined here, once.

All of them take a record that `is_measured`. "Slowest rank" is the one whose window lasted
longest: training goes on when the last rank has finished.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from dpbench.analysis.estimate import LogMean
from dpbench.records import TrialRecord, Window

Seconds = NDArray[np.float64]

BATCHES = ((200, 20), (20, 10))
"""At least so many steps: so many batches. Fewer steps have no interval of their own."""


SHORTEST_SECONDS = 1e-9


def is_measured(record: TrialRecord) -> bool:
    """Tells whether the record carries a speed at all: steps, seconds and samples."""
    timed = [rank.timed for rank in record.ranks]
    others = [rank.without_sync for rank in record.ranks if rank.without_sync is not None]
    return (
        bool(timed)
        and all(window.step_seconds for window in timed)
        and all(_is_possible(window) for window in (*timed, *others))
        and max(window.seconds for window in timed) >= SHORTEST_SECONDS
        and sum(window.samples for window in timed) > 0
    )


def _is_possible(window: Window) -> bool:
    total = window.seconds + sum(window.step_seconds)
    return math.isfinite(total) and window.seconds >= 0 and window.samples >= 0


def elapsed_seconds(record: TrialRecord) -> float:
    """Length of the timed window: the slowest rank's."""
    return _slowest(rank.timed for rank in record.ranks).seconds


def throughput(record: TrialRecord) -> float:
    """Samples that all ranks really consumed in the timed window ÷ elapsed seconds."""
    return sum(rank.timed.samples for rank in record.ranks) / elapsed_seconds(record)


def step_seconds(record: TrialRecord) -> Seconds:
    """Per timed step, the longest over ranks."""
    return _longest_steps([rank.timed for rank in record.ranks])


def exposed_communication_seconds(record: TrialRecord) -> float | None:
    """Mean step seconds with synchronization - without it; None if that was not measured.

    What overlap does not hide. Noise can make it negative; it is not clipped.
    """
    without = [rank.without_sync for rank in record.ranks if rank.without_sync is not None]
    if len(without) < len(record.ranks) or not all(w.step_seconds for w in without):
        return None
    return _mean_step(rank.timed for rank in record.ranks) - _mean_step(without)


def rank_skew(record: TrialRecord) -> float | None:
    """(max - min) ÷ median over ranks of the mean step without synchronization.

    Without that window, of the mean step with it, which hides most of the skew: the fast ranks
    wait for the slow ones. None for a single rank.
    """
    windows = [rank.without_sync or rank.timed for rank in record.ranks]
    if len(windows) < 2:
        return None
    steps = np.array([window.seconds / len(window.step_seconds) for window in windows])
    return float((steps.max() - steps.min()) / np.median(steps))


def throughput_mean(records: Sequence[TrialRecord]) -> LogMean:
    """Throughput over repetitions; of a single repetition, with the spread of its step batches."""
    if len(records) > 1:
        return LogMean.of_runs([throughput(record) for record in records])
    steps = step_seconds(records[0])
    batches = batch_means(steps)
    if not batches:
        return LogMean.of_single(throughput(records[0]))
    return LogMean.of_batches(throughput(records[0]), batches)


def batch_means(steps: Seconds) -> list[float]:
    """Means of consecutive batches, long enough to be nearly independent; empty if too few.

    20 batches keep the coverage of a 95 % interval at 0.93 where steps that are taken as
    independent have 0.45 (first-order autocorrelation 0.8, 1,600 steps).
    """
    count = next((batches for least, batches in BATCHES if len(steps) >= least), 0)
    return [float(batch.mean()) for batch in np.array_split(steps, count)] if count else []


def _slowest(windows: Iterable[Window]) -> Window:
    return max(windows, key=lambda window: window.seconds)


def _mean_step(windows: Iterable[Window]) -> float:
    slowest = _slowest(windows)
    return slowest.seconds / len(slowest.step_seconds)


def _longest_steps(windows: Sequence[Window]) -> Seconds:
    # Ranks take the same number of steps; if one stopped early, its last steps do not exist.
    longest: Seconds = np.zeros(max(len(window.step_seconds) for window in windows))
    for window in windows:
        own = longest[: len(window.step_seconds)]
        np.maximum(own, window.step_seconds, out=own)
    return longest

"""Statistics of single steps of timed windows beyond their mean. For diagnosis: nothing is dropped.

Every statistic is computed for many windows of equal length at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dpbench.analysis.estimate import Estimate, Floats
from dpbench.analysis.steady_state import WORST_FIRST, Steadiness, SteadyState, steady_states
from dpbench.analysis.throughput import batch_means
from dpbench.records.trial import RankMeasurement, TrialRecord
from dpbench.units import CLOCK_SECONDS

OUTLIER_DEVIATIONS = 14.826
"""Median absolute deviations above the median from which a step is an outlier: ten standard
deviations of normal noise, as in hyperfine."""
FEWEST_STEPS = 10
"""Fewest steps for outliers: with fewer, the median deviation rests on two or three of them."""
ROUNDING = 1e-12
"""Values whose spread is this much smaller than they are differ by the rounding of sums."""
LARGEST_CHUNK = 1 << 20
"""Most steps processed at once, so that memory does not grow with the number of trials."""


CORRELATED = 0.3
"""First-order autocorrelation of batch means from which their interval is too narrow."""
INDEPENDENT = ("steady", "too few steps")
"""Verdicts on windows whose steps are not correlated for another reason, such as a drift."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepStatistics:
    """Statistics of one timed window; None if too few or only equal steps leave one undefined."""

    steady: SteadyState
    outliers: int
    slowest_outlier: float | None
    """Seconds of the slowest ÷ median step; None without outliers."""
    autocorrelation: float | None
    """First-order autocorrelation of the steps."""
    batch_autocorrelation: float | None
    """First-order autocorrelation of the batch means that give a single repetition its interval."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepSummary:
    """All timed steps of a configuration's repetitions together."""

    count: int
    p50_seconds: float
    p95_seconds: float
    p99_seconds: float
    outliers: int
    slowest_outlier: float | None
    autocorrelation: float | None
    """Mean autocorrelation over repetitions."""
    steady: Steadiness
    """The worst verdict over repetitions."""
    windows: tuple[StepStatistics, ...]
    """Statistics of the windows, one per repetition."""


def step_statistics(windows: Sequence[Floats], warmup_steps: Sequence[int]) -> list[StepStatistics]:
    """The statistics of each window, in the order given; windows may differ in length."""
    groups: dict[tuple[int, int], list[int]] = {}
    for place, (window, warmup) in enumerate(zip(windows, warmup_steps, strict=True)):
        groups.setdefault((len(window), warmup), []).append(place)
    found: dict[int, StepStatistics] = {}
    for (length, warmup), places in groups.items():
        rows = max(1, LARGEST_CHUNK // length)
        for start in range(0, len(places), rows):
            chunk = places[start : start + rows]
            together = np.stack([windows[place] for place in chunk])
            found.update(zip(chunk, _of_equal_length(together, warmup), strict=True))
    return [found[place] for place in range(len(windows))]


def summarize_steps(windows: Sequence[Floats], each: Sequence[StepStatistics]) -> StepSummary:
    """Pool the windows of one configuration; quantiles are over all its steps."""
    pooled = np.concatenate(windows)
    p50, p95, p99 = np.percentile(pooled, (50, 95, 99)).tolist()
    slowest = [w.slowest_outlier for w in each if w.slowest_outlier is not None]
    correlations = [w.autocorrelation for w in each if w.autocorrelation is not None]
    return StepSummary(
        count=len(pooled),
        p50_seconds=p50,
        p95_seconds=p95,
        p99_seconds=p99,
        outliers=sum(window.outliers for window in each),
        slowest_outlier=max(slowest, default=None),
        autocorrelation=sum(correlations) / len(correlations) if correlations else None,
        steady=min((window.steady.verdict for window in each), key=WORST_FIRST.index),
        windows=tuple(each),
    )


def outlier_limits(steps: Floats) -> Floats:
    """Seconds of each row above which a step is an outlier; infinite where steps are too few."""
    if steps.shape[1] < FEWEST_STEPS:
        return np.full(len(steps), np.inf)
    medians = np.median(steps, axis=1)
    deviations = np.median(np.abs(steps - medians[:, None]), axis=1)
    limits: Floats = medians + OUTLIER_DEVIATIONS * deviations + CLOCK_SECONDS
    return limits


def autocorrelation(values: Floats) -> Floats:
    """First-order autocorrelation of each row: sum (x_i - m)(x_i+1 - m) ÷ sum (x_i - m)²; NaN for
    equal values."""
    means = values.mean(axis=1)
    centred = values - means[:, None]
    squares = (centred**2).sum(axis=1)
    products = (centred[:, 1:] * centred[:, :-1]).sum(axis=1)
    differ = np.sqrt(squares) > ROUNDING * np.abs(means)
    found: Floats = np.full(len(values), np.nan)
    np.divide(products, squares, out=found, where=differ)
    return found


def _of_equal_length(steps: Floats, warmup_steps: int) -> Iterator[StepStatistics]:
    medians = np.median(steps, axis=1)
    outliers = (steps > outlier_limits(steps)[:, None]).sum(axis=1).tolist()
    slowest = (steps.max(axis=1) / np.maximum(medians, CLOCK_SECONDS)).tolist()
    of_steps = _or_none(autocorrelation(steps))
    batches = batch_means(steps)
    of_batches = _or_none(autocorrelation(batches)) if batches.size else [None] * len(steps)
    for row, steady in enumerate(steady_states(steps, warmup_steps)):
        yield StepStatistics(
            steady=steady,
            outliers=outliers[row],
            slowest_outlier=slowest[row] if outliers[row] else None,
            autocorrelation=of_steps[row],
            batch_autocorrelation=of_batches[row],
        )


def _or_none(values: Floats) -> list[float | None]:
    return [None if np.isnan(value) else value for value in values.tolist()]


def step_notes(label: str, steps: StepSummary, throughput: Estimate) -> list[str]:
    """A note if batches of steps are correlated and the interval comes from batches."""
    if throughput.basis != "step batches" or steps.steady not in INDEPENDENT:
        return []
    correlation = steps.windows[0].batch_autocorrelation
    if correlation is None or correlation <= CORRELATED:
        return []
    return [
        f"{label}: batches of its steps are correlated ({correlation:.2f}): the interval within "
        "its one repetition is too narrow; raise --steps or --repetitions"
    ]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RankSteps:
    """Arrays of seconds, one value per step."""

    rank: int
    timed: Floats
    """Steps with synchronization: in them fast ranks wait for slow ones."""
    alone: Floats | None
    """Steps without synchronization; None if a repetition lacks them."""
    outliers: Floats
    """The timed steps that are outliers in the rank's own window."""


def rank_steps(records: Sequence[TrialRecord]) -> tuple[RankSteps, ...]:
    """Steps of each rank, from at least one measured record."""
    by_rank: dict[int, list[RankMeasurement]] = {}
    for record in records:
        for measured in record.ranks:
            by_rank.setdefault(measured.rank, []).append(measured)
    return tuple(_rank_steps(rank, measured) for rank, measured in sorted(by_rank.items()))


def _rank_steps(rank: int, measured: Sequence[RankMeasurement]) -> RankSteps:
    windows = [np.array(one.timed.step_seconds) for one in measured]
    without = [one.without_sync for one in measured if one.without_sync]
    return RankSteps(
        rank=rank,
        timed=np.concatenate(windows),
        alone=np.concatenate([window.step_seconds for window in without])
        if len(without) == len(measured) and all(window.step_seconds for window in without)
        else None,
        outliers=np.concatenate([one[one > outlier_limits(one[None])] for one in windows]),
    )

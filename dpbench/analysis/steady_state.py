"""Whether a timed window is in a steady state, or still warming up, or drifting.

MSER-5 (White, Cobb and Spratt 2000) says how many steps to leave out at the start: the cut after
which the squared standard error of the mean of the rest is smallest. A Theil-Sen slope says whether
the rest drifts. Nothing is dropped: throughput stays that of the whole window.

The steps at the end are compared with those before as well, for what changes late: a device that
throttles, load that sets in.

All are judged by their effect (1 % of the mean step; at the end, 0.5 %) and by its significance, so
that noise is no verdict. Neighbouring steps are correlated, as a disturbance often slows several,
and then a sum of them varies more; all limits are widened by as much. In simulation (40 to 500
steps that vary by 2 to 10 %, 3,000 windows each) at most 0.2 % of steady windows are flagged, and
at most 0.9 % where neighbours are correlated by 0.3 to 0.6; steps that take 5 % longer in the last
fifth of 100 or more are found in all windows that vary by 2 %.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from dpbench.analysis.estimate import CONFIDENCE, Floats
from dpbench.analysis.throughput import batch_means

Steadiness = Literal[
    "steady",
    "too few steps",
    "warming up",
    "changing at the end",
    "drifting",
    "no steady state",
]
WORST_FIRST: tuple[Steadiness, ...] = (
    "no steady state",
    "drifting",
    "changing at the end",
    "warming up",
    "too few steps",
    "steady",
)

MSER_BATCH = 5
FEWEST_STEPS = 40
"""Fewest steps that can be judged: half of them have to hold the batches for the drift."""
WARMUP_FLOOR = 10
"""Steps that never count as steady: DDP rebuilds its buckets after the first, libraries tune their
kernels, allocators grow, connections open, clocks rise. Warmup steps count towards it."""
LARGEST_CHANGE = 0.01
"""Share of the mean step that a cut or a drift may change without a remark."""
LARGEST_LATE_CHANGE = 0.005
"""Share for steps at the end, where 5 % more in the last fifth make 1 % of the mean."""
RANK_LIMIT = 3.7
"""Standard errors of the rank sum by which the steps that are cut must differ from the others.
More than usual, because the cut was chosen for its difference; ranks, because a single slow step
is an outlier and no warmup."""
LATE_LIMIT = 4.0
"""Limit for the steps at the end, which were chosen for the largest difference of all."""
DRIFT_LIMIT = 3.3
"""Standard errors of Kendall's S by which the batches of a window must rise or fall."""
MOST_CORRELATED = 0.9
"""Autocorrelation beyond which a window is too short to distinguish it from a drift."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SteadyState:
    """The verdict on one window; changes are relative to its mean step."""

    verdict: Steadiness
    cut_steps: int = 0
    """Steps at the start that MSER-5 or the floor would leave out."""
    change: float = 0.0
    """Effect of the cut steps on the mean: 1 - mean of the rest ÷ mean of all steps."""
    drift: float = 0.0
    """Slope of the rest x its length ÷ mean of all steps."""
    late_steps: int = 0
    """Number of steps at the end that differ most from those before."""
    late_change: float = 0.0
    """Effect of the late steps on the mean: 1 - mean of the steps before ÷ mean of all."""


def steady_states(steps: Floats, warmup_steps: int) -> list[SteadyState]:
    """The verdicts on windows of equal length; `steps` has shape (windows, steps), in seconds."""
    if steps.shape[1] < FEWEST_STEPS:
        return [SteadyState(verdict="too few steps")] * len(steps)
    cuts, at_half = mser5(steps)
    cuts = np.maximum(cuts, WARMUP_FLOOR - warmup_steps)
    ranked = ranks(steps)
    both, alike = np.unique(np.stack([cuts, late_steps(ranked)]), axis=1, return_inverse=True)
    verdicts: list[SteadyState | None] = [None] * len(steps)
    for number, (cut, late) in enumerate(both.T.tolist()):
        rows = np.flatnonzero(alike.ravel() == number)
        judged = _judge(steps[rows], ranked[rows], cut, late, at_half[rows])
        for row, verdict in zip(rows, judged, strict=True):
            verdicts[row] = verdict
    return [verdict for verdict in verdicts if verdict is not None]


def mser5(steps: Floats) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """(steps to leave out, whether that is the allowed maximum: half) for each window.

    The cut d of k batches minimises sum over j > d of (Y_j - mean)² ÷ (k - d)², d <= k / 2.
    """
    count = steps.shape[1] // MSER_BATCH
    batches = steps[:, : count * MSER_BATCH].reshape(len(steps), count, MSER_BATCH).mean(axis=2)
    batches = batches - batches.mean(axis=1, keepdims=True)
    left = np.arange(count, 0, -1)
    sums = _sums_to_the_end(batches)
    scores = (_sums_to_the_end(batches**2) - sums**2 / left) / left**2
    cuts = scores[:, : count // 2 + 1].argmin(axis=1)
    return cuts * MSER_BATCH, cuts == count // 2


def theil_sen(values: Floats, confidence: float) -> tuple[Floats, Floats, Floats]:
    """(slope, low, high) per place of each row of `values`: the median of all pairwise slopes.

    Equals scipy.stats.theilslopes for many rows at once; ties are not corrected for.
    """
    length = values.shape[1]
    first, second = np.triu_indices(length, 1)
    slopes = np.sort((values[:, second] - values[:, first]) / (second - first), axis=1)
    pairs = slopes.shape[1]
    reach = ndtri(0.5 + confidence / 2) * kendall_spread(length)
    low = max(round((pairs - reach) / 2) - 1, 0)
    high = min(round((pairs + reach) / 2), pairs - 1)
    return np.median(slopes, axis=1), slopes[:, low], slopes[:, high]


def kendall_spread(length: int) -> float:
    """Standard deviation of Kendall's S of `length` independent values."""
    return math.sqrt(length * (length - 1) * (2 * length + 5) / 18)


def late_steps(ranked: Floats) -> NDArray[np.int64]:
    """Number of steps at the end that differ most from those before, in batches of 5, half at the
    most.

    Their rank sum is the most standard errors away from its expectation. MSER-5, applied from the
    end, would cut too much: it only considers the rest.
    """
    length = ranked.shape[1]
    lengths = np.arange(MSER_BATCH, length // 2 + 1, MSER_BATCH)
    sums = _sums_to_the_end(ranked)[:, length - lengths]
    scores = np.abs(sums - lengths * (length + 1) / 2) / np.sqrt(lengths * (length - lengths))
    found: NDArray[np.int64] = lengths[scores.argmax(axis=1)]
    return found


def _judge(
    steps: Floats, ranked: Floats, cut: int, late: int, at_half: NDArray[np.bool_]
) -> Iterator[SteadyState]:
    """Verdicts on windows in which these numbers of steps are cut at the start and at the end."""
    length = steps.shape[1]
    means = steps.mean(axis=1)
    change = 1 - steps[:, cut:].mean(axis=1) / means
    late_change = 1 - steps[:, : length - late].mean(axis=1) / means
    correlation = noise_correlation(ranked, cut, late)
    inflated = inflation(correlation)
    warming = (np.abs(change) > LARGEST_CHANGE) & _differs(
        ranked[:, :cut], length, RANK_LIMIT * np.sqrt(inflated)
    )
    changing = (np.abs(late_change) > LARGEST_LATE_CHANGE) & _differs(
        ranked[:, length - late :], length, LATE_LIMIT * np.sqrt(inflated)
    )
    batches = batch_means(steps[:, cut:])
    slope, _, _ = theil_sen(batches, CONFIDENCE)
    drift = slope * batches.shape[1] / means
    in_batches = inflation(of_batches(correlation, (length - cut) / batches.shape[1]))
    drifting = (np.abs(drift) > LARGEST_CHANGE) & _rises(batches, in_batches)
    for row in range(len(steps)):
        verdict: Steadiness = "steady"
        if warming[row] and at_half[row]:
            verdict = "no steady state"
        elif warming[row] and not drifting[row]:
            # Compared with a slow start the end of a window is fast: that is no separate change.
            verdict = "warming up"
        elif changing[row] and not (drifting[row] and late > length // 3):
            verdict = "changing at the end"
        elif drifting[row]:
            verdict = "drifting"
        yield SteadyState(
            verdict=verdict,
            cut_steps=cut,
            change=float(change[row]),
            drift=float(drift[row]),
            late_steps=late,
            late_change=float(late_change[row]),
        )


def _rises(values: Floats, inflated: Floats) -> NDArray[np.bool_]:
    """Kendall's test: whether each row goes up or down as a whole."""
    first, second = np.triu_indices(values.shape[1], 1)
    total = np.abs(np.sign(values[:, second] - values[:, first]).sum(axis=1))
    rises: NDArray[np.bool_] = total > DRIFT_LIMIT * kendall_spread(values.shape[1]) * np.sqrt(
        inflated
    )
    return rises


def _differs(chosen: Floats, length: int, limit: Floats) -> NDArray[np.bool_]:
    """Wilcoxon's rank sum: whether the steps with these ranks differ from the others of a window of
    `length` steps by at least `limit` standard errors."""
    count = chosen.shape[1]
    expected = count * (length + 1) / 2
    spread = math.sqrt(count * (length - count) * (length + 1) / 12)
    differs: NDArray[np.bool_] = np.abs(chosen.sum(axis=1) - expected) > limit * spread
    return differs


def ranks(values: Floats) -> Floats:
    """The ranks of each row's values, from 1; equal values share their mean rank.

    It counts like scipy.stats.rankdata.
    """
    found: Floats = np.stack(
        [
            (ordered.searchsorted(row, "left") + ordered.searchsorted(row, "right") + 1) / 2
            for row, ordered in zip(values, np.sort(values, axis=1), strict=True)
        ]
    )
    return found


def noise_correlation(ranked: Floats, cut: int, late: int) -> Floats:
    """First-order autocorrelation of the ranks of each row, at least 0.

    Changes that the tests look for must not count as correlation: each part of the window is taken
    about its own straight line. That makes the estimate too small, by (1 + 3 r) ÷ length for every
    parameter, which is added back.
    """
    length = ranked.shape[1]
    ends = [0, cut, length - late, length]
    parts = [ranked[:, a:b] for a, b in pairwise(ends) if b > a]
    rest = np.concatenate([_without_line(part) for part in parts], axis=1)
    squares = (rest**2).sum(axis=1)
    products = (rest[:, 1:] * rest[:, :-1]).sum(axis=1)
    r = np.divide(products, squares, out=np.zeros(len(ranked)), where=squares > 0)
    r += (1 + 3 * r) * 2 * len(parts) / length
    found: Floats = np.clip(r, 0.0, MOST_CORRELATED)
    return found


def inflation(correlation: Floats) -> Floats:
    """Factor on the variance of a long sum relative to independent values.

    It holds for a first-order autoregression with this correlation between neighbours.
    """
    found: Floats = (1 + correlation) / (1 - correlation)
    return found


def of_batches(correlation: Floats, length: float) -> Floats:
    """Correlation between means of neighbouring batches of `length` steps each.

    For a first-order autoregression it is cov(A, B) ÷ var(A) of two consecutive sums.
    """
    r, power = correlation, correlation**length
    covariance = r * (1 - power) ** 2
    found: Floats = covariance / (length * (1 - r**2) - 2 * r * (1 - power))
    return found


def _without_line(values: Floats) -> Floats:
    """Residuals of each row about its straight line of least squares."""
    places = np.arange(values.shape[1]) - (values.shape[1] - 1) / 2
    centred = values - values.mean(axis=1, keepdims=True)
    slopes = centred @ places / max(float(places @ places), 1.0)
    residuals: Floats = centred - slopes[:, None] * places
    return residuals


def _sums_to_the_end(values: Floats) -> Floats:
    sums: Floats = np.cumsum(values[:, ::-1], axis=1)[:, ::-1]
    return sums

"""Whether a timed window is in a steady state, or still warming up, or drifting.

MSER-5 (White, Cobb and Spratt 2000) says how many steps to leave out at the start: the cut after
which the squared standard error of the mean of the rest is smallest. A Theil-Sen slope says whether
the rest drifts. Nothing is dropped: throughput stays that of the whole window.

Both are judged by what they change (1 % of the mean step) and by how sure that is, so that noise is
no verdict: of windows of steady noise, whatever its size, less than 2 % are flagged, and less than
5 % where neighbouring steps are correlated by 0.5.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from dpbench.analysis.throughput import batch_means

Verdict = Literal["steady", "too few steps", "warming up", "drifting", "no steady state"]
Floats = NDArray[np.float64]

WORST_FIRST: tuple[Verdict, ...] = (
    "no steady state",
    "drifting",
    "warming up",
    "too few steps",
    "steady",
)

MSER_BATCH = 5
FEWEST_STEPS = 40
"""Fewer cannot tell: half of them has to hold the batches that a drift is read from."""
WARMUP_FLOOR = 10
"""Steps that never count as steady: DDP rebuilds its buckets after the first, libraries tune their
kernels, allocators grow, connections open, clocks rise. Warmup steps count towards it."""
LARGEST_CHANGE = 0.01
"""Of the mean step: what a cut or a drift may change without being worth a word."""
RANK_LIMIT = 3.7
"""Standard errors of the rank sum by which the steps that are cut must differ from the others.
More than usual, because the cut was chosen for its difference; ranks, because a single slow step
is an outlier and no warmup."""
DRIFT_CONFIDENCE = 0.99


@dataclass(frozen=True, kw_only=True, slots=True)
class SteadyState:
    """The verdict on one window; changes are parts of its mean step."""

    verdict: Verdict
    cut_steps: int = 0
    """Steps at the start that MSER-5 or the floor would leave out."""
    change: float = 0.0
    """1 - mean of the rest ÷ mean of all steps: what the cut steps add to the mean."""
    drift: float = 0.0
    """Slope of the rest x its length ÷ mean of all steps."""


def steady_states(steps: Floats, warmup_steps: int) -> list[SteadyState]:
    """The verdicts on windows of equal length; `steps` has shape (windows, steps), in seconds."""
    if steps.shape[1] < FEWEST_STEPS:
        return [SteadyState(verdict="too few steps")] * len(steps)
    cuts, at_half = mser5(steps)
    cuts = np.maximum(cuts, WARMUP_FLOOR - warmup_steps)
    verdicts: list[SteadyState | None] = [None] * len(steps)
    for cut in np.unique(cuts):
        rows = np.flatnonzero(cuts == cut)
        judged = _judge(steps[rows], int(cut), at_half[rows])
        for row, verdict in zip(rows, judged, strict=True):
            verdicts[row] = verdict
    return [verdict for verdict in verdicts if verdict is not None]


def mser5(steps: Floats) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """(steps to leave out, whether that is the most that is allowed: half) for each window.

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

    What scipy.stats.theilslopes gives, for many rows at once; ties are not corrected for.
    """
    length = values.shape[1]
    first, second = np.triu_indices(length, 1)
    slopes = np.sort((values[:, second] - values[:, first]) / (second - first), axis=1)
    pairs = slopes.shape[1]
    spread = np.sqrt(length * (length - 1) * (2 * length + 5) / 18)  # of Kendall's S
    reach = float(ndtri(0.5 + confidence / 2)) * spread
    low = max(round((pairs - reach) / 2) - 1, 0)
    high = min(round((pairs + reach) / 2), pairs - 1)
    return np.median(slopes, axis=1), slopes[:, low], slopes[:, high]


def _judge(steps: Floats, cut: int, at_half: NDArray[np.bool_]) -> Iterator[SteadyState]:
    """Verdicts on windows with the same cut."""
    means = steps.mean(axis=1)
    change = 1 - steps[:, cut:].mean(axis=1) / means
    warming = (np.abs(change) > LARGEST_CHANGE) & _cut_differs(steps, cut)
    batches = batch_means(steps[:, cut:])
    slope, low, high = theil_sen(batches, DRIFT_CONFIDENCE)
    drift = slope * batches.shape[1] / means
    drifting = (np.abs(drift) > LARGEST_CHANGE) & ((low > 0) | (high < 0))
    for row in range(len(steps)):
        verdict: Verdict = "steady"
        if warming[row] and at_half[row]:
            verdict = "no steady state"
        elif drifting[row]:
            verdict = "drifting"
        elif warming[row]:
            verdict = "warming up"
        yield SteadyState(
            verdict=verdict, cut_steps=cut, change=float(change[row]), drift=float(drift[row])
        )


def _cut_differs(steps: Floats, cut: int) -> NDArray[np.bool_]:
    """Wilcoxon's rank sum of the steps before the cut against those after it."""
    length = steps.shape[1]
    expected = cut * (length + 1) / 2
    spread = np.sqrt(cut * (length - cut) * (length + 1) / 12)
    differs: NDArray[np.bool_] = np.abs(rank_sums(steps, cut) - expected) > RANK_LIMIT * spread
    return differs


def rank_sums(values: Floats, cut: int) -> Floats:
    """Of the first `cut` values of each row, among all of it; equal values share their mean rank.

    As scipy.stats.rankdata counts, but importing scipy.stats would take every command a second.
    """
    sums = [
        (ordered.searchsorted(row[:cut], "left") + ordered.searchsorted(row[:cut], "right") + 1)
        for row, ordered in zip(values, np.sort(values, axis=1), strict=True)
    ]
    halved: Floats = np.sum(sums, axis=1) / 2
    return halved


def _sums_to_the_end(values: Floats) -> Floats:
    sums: Floats = np.cumsum(values[:, ::-1], axis=1)[:, ::-1]
    return sums

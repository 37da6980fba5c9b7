"""The ranks that others wait for in single steps, and these steps.

A rank that is always slower shows up in the balance (see `factors`). This module is about ranks
that are as fast as the others on average but slow now and then: with synchronization each step
takes as long as its slowest rank, whichever that is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpbench.analysis.throughput import (
    Seconds,
    seconds_between_synchronizations,
    steps_between_synchronizations,
    steps_without_sync,
)
from dpbench.records import TrialRecord

MOST_STEPS = 5
"""Most steps that are named one by one; waiting over more of them is spread."""
HALF = 0.5
ONE_RANK = 2 / 3
"""Share of the waiting from which one rank is blamed; of two equally variable ranks each has a
half."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stragglers:
    """Ranks that delay the others in single steps, over all repetitions."""

    rank: int
    """The rank that costs the others the most seconds of waiting."""
    slowest_in: float
    """Share of the steps in which it is the slowest."""
    share_of_waiting: float
    """Share of all seconds of waiting in those steps."""
    steps: int
    """Steps of all repetitions; intervals between two averages where parameters are averaged."""
    worst: tuple[int, ...] = ()
    """The few steps of `repetition` with half of its waiting, in order; () if it is spread over
    more."""
    repetition: int = 0
    """The repetition that waited longest."""

    @property
    def is_one_rank(self) -> bool:
        return self.share_of_waiting >= ONE_RANK


def stragglers(records: Sequence[TrialRecord]) -> Stragglers | None:
    """The stragglers; None unless every repetition has the steps of several ranks without
    synchronization."""
    if any(len(r.ranks) < 2 or steps_without_sync(r) is None for r in records):
        return None
    waits = [_waiting(record) for record in records]
    ranks = np.concatenate([slowest for slowest, _ in waits])
    seconds = np.concatenate([lost for _, lost in waits])
    total = float(seconds.sum())
    if not total > 0:
        return None
    rank = int(np.bincount(ranks, weights=seconds).argmax())
    record, (_, lost) = max(zip(records, waits, strict=True), key=lambda pair: pair[1][1].sum())
    return Stragglers(
        rank=record.ranks[rank].rank,
        slowest_in=float((ranks == rank).mean()),
        share_of_waiting=float(seconds[ranks == rank].sum()) / total,
        steps=len(ranks),
        worst=tuple(place * steps_between_synchronizations(record.trial) for place in _worst(lost)),
        repetition=record.trial.repetition,
    )


def _waiting(record: TrialRecord) -> tuple[NDArray[np.int64], Seconds]:
    """(index of the slowest rank, seconds that the mean rank waits for it) for every step.

    The ranks' typical steps are equalized first, so that only differences of single steps remain.
    This uses medians, because a mean raised by a few slow steps would make all other steps look
    fast.
    """
    spans = seconds_between_synchronizations(record)
    spans = spans - np.median(spans, axis=1, keepdims=True)
    return spans.argmax(axis=0), spans.max(axis=0) - spans.mean(axis=0)


def _worst(lost: Seconds) -> tuple[int, ...]:
    """The fewest steps that hold half of the waiting; () if they are many, or most of all."""
    order = np.argsort(-lost, kind="stable")
    count = int(np.searchsorted(np.cumsum(lost[order]), HALF * lost.sum())) + 1
    if count > MOST_STEPS or count > len(lost) / 10:
        return ()
    return tuple(sorted(order[:count].tolist()))

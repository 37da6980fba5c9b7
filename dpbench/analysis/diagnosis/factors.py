"""Factored efficiency: why n replicas are not n times as fast, as factors that multiply to it.

A step is followed from the ideal to what was reached, in seconds:

    ideal        t1(B) / n          `single` at the global batch B, shared out for nothing
    sharded      mean t1(b_i)       `single` at the batch b_i that each rank really takes
    contended    typical T_i        `independent` copies at once, without communication
    wrapped      typical c_i        the implementation without synchronization
    waiting      mean_k max c_ik    the rank that is slowest in each step k
    reached                         with synchronization, the slowest rank's mean

Each quotient of neighbors is a factor, so their product is ideal / reached, the efficiency against
`single` (absolute), exactly. It follows the multiplicative hierarchy of the POP Centre of
Excellence, with copies that share a machine in the place of its computation scalability.

Two choices keep one cause out of another's factor. The typical copy and the typical rank are the
low median (the faster of two): a mean would call a part of every straggler contention. Their step
is the median + (mean − median) of the steps of `single`, so that further pauses in some steps
count as waiting.

If a time was not measured, its two neighbors still have a quotient: one factor with two parts. All
quotients are computed within one repetition (one pass of the palindrome), then averaged on
logarithms.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean, median, median_low
from typing import Literal, get_args

import numpy as np

from dpbench.analysis.estimate import Estimate, geometric_mean, mean
from dpbench.analysis.scaling import UNITY
from dpbench.analysis.throughput import (
    slowest_rank_step_seconds,
    step_with_and_without_communication,
    unsynced_windows,
)
from dpbench.records.trial import TrialRecord, Window
from dpbench.specs import Configuration
from dpbench.specs.parallel import Scaling
from dpbench.specs.traits import INDEPENDENT

Part = Literal["granularity", "contention", "wrapper", "waiting", "communication"]
PARTS: tuple[Part, ...] = get_args(Part)
IDEAL, SHARDED, CONTENDED, WRAPPED, WAITING, REACHED = range(6)
"""Stages of a step; part k lies between stage k and stage k + 1."""

LARGE_LOSS = 0.05
"""Smallest share of a step whose loss is worth advice."""
Trials = Mapping[tuple[Configuration, int], TrialRecord]
"""The usable trials of a sweep by what they ran, see `_reference_key`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Factor:
    """Ratio of efficiency between two stages; below 1 it is a loss."""

    parts: tuple[Part, ...]
    """Parts; more than one if the times between them were not measured."""
    value: Estimate
    share: Estimate
    """Share of the reached step's seconds that it costs; negative for a gain."""

    @property
    def is_gain(self) -> bool:
        """Whether its ratio or its share shows a gain beyond the noise."""
        return (self.excludes_one and self.value.value > 1) or self.share.ends[1] < 0

    @property
    def excludes_one(self) -> bool:
        """Whether its ratio, compared on logarithms, excludes 1, whatever the share's interval."""
        low, high = self.value.ends
        return self.value.interval is not None and not low <= 1 <= high

    @property
    def is_large_loss(self) -> bool:
        """Whether its ratio or its share shows a loss beyond the noise that is worth advice."""
        is_loss = self.excludes_one and self.value.value < 1 and self.share.value >= LARGE_LOSS
        return is_loss or is_large_loss(self.share)


@dataclass(frozen=True, kw_only=True, slots=True)
class Breakdown:
    """The factors of one configuration, and what they rest on. Their product is its efficiency
    against `single`, unless that was not measured."""

    factors: tuple[Factor, ...]
    step_seconds: Estimate
    """Step seconds with synchronization, the slowest rank's mean, over the repetitions in which all
    times behind the factors were measured."""
    missing: tuple[int, ...]
    """Stages whose seconds were not measured."""

    def factor_of(self, part: Part) -> Factor | None:
        """The factor that a part belongs to, alone or with others."""
        return next((factor for factor in self.factors if part in factor.parts), None)

    def loses_less_than(self, other: Breakdown, part: Part | None) -> bool:
        """Whether a part surely loses less, or without one the whole step is surely shorter. Steps
        differ less clearly: they include all disturbances that both share."""
        if part is None:
            return self.step_seconds.ends[1] < other.step_seconds.ends[0]
        own, others = self.factor_of(part), other.factor_of(part)
        return bool(own and others and own.value.ends[0] > others.value.ends[1])

    @property
    def offset_losses(self) -> tuple[tuple[Factor, Factor], ...]:
        """Large losses, each with a gain beyond the noise that makes up for half of it or more, so
        that neither says much: steps without synchronization, from which two times come, may be
        slower than those with it."""
        near = (*pairwise(self.factors), *zip(self.factors, self.factors[2:], strict=False))
        pairs = (sorted(pair, key=lambda factor: factor.value.value) for pair in near)
        return tuple(
            (loss, gain)
            for loss, gain in pairs
            if loss.is_large_loss and gain.is_gain and loss.share.value <= -2 * gain.share.value
        )


def is_large_loss(share: Estimate) -> bool:
    """Whether a share of a step is surely lost, and worth advice."""
    return share.interval is not None and share.interval[0] > 0 and share.value >= LARGE_LOSS


def trials_by_key(records: Iterable[TrialRecord]) -> Trials:
    """The trials that others are compared with in the same repetition."""
    return {_reference_key(record.configuration, record.repetition): record for record in records}


def break_down(records: Sequence[TrialRecord], references: Trials) -> Breakdown:
    """Break down the step of the usable repetitions of one configuration; at least one record."""
    measured = {r.repetition: stages(r, references) for r in records}
    # Repetitions that lack a stage are left out; a stage that would leave none is dropped.
    kept = {*measured}
    stages_kept = list[int]()
    for place in (REACHED, IDEAL, WAITING, WRAPPED, CONTENDED, SHARDED):
        if having := {repetition for repetition in kept if place in measured[repetition]}:
            kept = having
            stages_kept.append(place)
    places = sorted(stages_kept)
    seconds = np.array([[measured[n][place] for place in places] for n in sorted(kept)])
    reached = seconds[:, -1]
    # Parts that are 1 by definition, because such a trial does not have them.
    settings = records[0].configuration
    known: set[Part] = {"granularity"} if settings.scaling == "weak" else set()
    if settings.group_size == 1:
        known = {*PARTS} - {"wrapper"}
    elif settings.implementation == INDEPENDENT:
        known |= {"wrapper", "communication"}
    factors = []
    for k, (first, last) in enumerate(pairwise(places)):
        parts = PARTS[first:last]
        before, after = seconds[:, k], seconds[:, k + 1]
        ratio = geometric_mean((before / after).tolist(), unit="×")
        share = mean(((after - before) / reached).tolist(), unit="of the step")
        value = UNITY if known.issuperset(parts) else ratio
        if share.interval and share.ends[0] <= 0 and ratio.ends[0] <= 1 <= ratio.ends[1]:
            # Where neither shows a loss, both bound it.
            most = (1 - ratio.ends[0]) * fmean(after / reached)
            share = replace(share, high=max(share.ends[1], most))
        factors.append(Factor(parts=parts, value=value, share=share))
    return Breakdown(
        factors=tuple(factors),
        step_seconds=geometric_mean(reached.tolist(), unit="s"),
        missing=tuple(place for place in range(len(PARTS) + 1) if place not in places),
    )


def stages(record: TrialRecord, references: Trials) -> dict[int, float]:
    """Seconds of a step at all stages from ideal to reached, in one repetition."""
    settings, repetition = record.configuration, record.repetition
    seconds, pauses = _stages_of_single(settings, repetition, references)
    reached = slowest_rank_step_seconds(record)
    seconds[REACHED] = reached
    if settings.group_size == 1:
        # Nothing is sharded or contended; any extra cost of the step is the wrapper's.
        seconds |= {place: seconds[IDEAL] for place in (SHARDED, CONTENDED) if IDEAL in seconds}
        return {**seconds, WRAPPED: reached, WAITING: reached}
    if settings.implementation == INDEPENDENT:
        copies = median_low([rank.timed.mean_step_seconds for rank in record.ranks])
        return {**seconds, CONTENDED: copies, WRAPPED: copies, WAITING: reached}
    as_copies = replace(settings, implementation=INDEPENDENT, backend="none")
    if (at_once := references.get(_reference_key(as_copies, repetition))) is not None:
        seconds[CONTENDED] = median_low([_median(rank.timed) for rank in at_once.ranks]) + pauses
    if (measured := step_with_and_without_communication(record)) is None:
        return seconds
    step, free = measured
    seconds[WAITING] = free * (reached / step)
    if settings.process_count > 1:
        # A process that drives all replicas has one clock, which measures the slowest in each step.
        unsynced = [_median(window) for window in unsynced_windows(record)]
        seconds[WRAPPED] = median_low(unsynced) + pauses
    return seconds


def _median(window: Window) -> float:
    """Median step of a window, scaled as its mean is: on CUDA the host times the window and the
    device its steps."""
    average = fmean(window.step_seconds)
    scale = window.mean_step_seconds / average if average else 1.0
    return median(window.step_seconds) * scale


def _stages_of_single(
    settings: Configuration, repetition: int, references: Trials
) -> tuple[dict[int, float], float]:
    """The stages of `single`: an equal share of its step at the global batch, and at the actual
    shards; and its mean − median step, which is what pauses in some steps cost it, at least 0.

    Shards of strong scaling may differ by one sample; then their mean counts, and the slower rank
    with the larger shard is waited for.
    """
    # None: the script chooses.
    sizes: tuple[int | None, ...] = settings.replica_batch_sizes if settings.batch_size else (None,)
    known = {}
    for size in {*sizes, settings.batch_size}:
        single = _reference_key(replace(settings.single, batch_size=size), repetition)
        if (record := references.get(single)) is not None:
            known[size] = record
    means = {size: slowest_rank_step_seconds(record) for size, record in known.items()}
    stages = dict[int, float]()
    if means.keys() >= {*sizes}:
        stages[SHARDED] = fmean(means[size] for size in sizes)
        if settings.scaling == "weak":
            stages[IDEAL] = stages[SHARDED]
    if settings.scaling == "strong" and settings.batch_size in means:
        stages[IDEAL] = means[settings.batch_size] / settings.group_size
    pauses = [means[size] - _median(known[size].ranks[0].timed) for size in {*sizes} & known.keys()]
    return stages, max(0.0, fmean(pauses or [0.0]))


def _reference_key(settings: Configuration, repetition: int) -> tuple[Configuration, int]:
    """The trial without settings that do not change its timed steps, which are the same in weak
    and strong scaling of one replica: a lookup key."""
    scaling: Scaling = "weak" if settings.group_size == 1 else settings.scaling
    return replace(settings.normalized, scaling=scaling, is_instrumented=False), repetition

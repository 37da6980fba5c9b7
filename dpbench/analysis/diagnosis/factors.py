"""Factored efficiency: why n replicas are not n times as fast, as factors that multiply to it.

A step is followed from the ideal to what was reached, in seconds (means over ranks i):

    ideal        t1(B) / n          `single` at the global batch B, shared out for nothing
    sharded      mean t1(b_i)       `single` at the batch b_i that each rank really takes
    contended    mean T_i           n `independent` copies at once, without communication
    wrapped      mean c_i           the implementation without synchronization
    unbalanced   max c_i            its slowest rank
    waiting      mean_k max c_ik    the rank that is slowest in each step k
    reached      T                  with synchronization, the slowest rank

Each quotient of neighbours is a factor, so their product is ideal / reached, the efficiency
against `single` (absolute), exactly. It follows the multiplicative hierarchy of the POP Centre
of Excellence, with copies that share a machine in the place of its computation scalability.

If a time was not measured, its two neighbours still have a quotient: one factor with two parts. All
quotients are computed within one repetition (one pass of the palindrome), then averaged on
logarithms.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean
from typing import Literal, get_args

from dpbench.analysis.estimate import Estimate, LogMean, mean
from dpbench.analysis.scaling import BASELINE
from dpbench.analysis.throughput import (
    free_communication_seconds,
    mean_rank_step_seconds,
    slowest_rank_step_seconds,
    steps_without_sync,
)
from dpbench.records.trial import TrialRecord
from dpbench.specs import TrialSpec
from dpbench.specs.traits import INDEPENDENT, SINGLE

Part = Literal["granularity", "contention", "wrapper", "balance", "stragglers", "communication"]
PARTS: tuple[Part, ...] = get_args(Part)
IDEAL, SHARDED, CONTENDED, WRAPPED, UNBALANCED, WAITING, REACHED = range(7)
"""Stages of a step; part k lies between stage k and stage k + 1."""

Way = tuple[float | None, ...]
"""Seconds of a step at every stage, in one repetition; None where not measured."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Factor:
    """Ratio of efficiency between two stages; below 1 it is a loss."""

    parts: tuple[Part, ...]
    """Parts; more than one if the times between them were not measured."""
    value: Estimate
    share: Estimate
    """Share of the reached step's seconds that it costs; negative for a gain."""

    @property
    def is_loss(self) -> bool:
        """Whether noise is excluded: the whole interval lies below 1."""
        return self.value.interval is not None and self.value.interval[1] < 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Factors:
    """The factors of one configuration; consecutive ones multiply."""

    factors: tuple[Factor, ...]
    efficiency: Estimate | None
    """Product of the factors: efficiency against `single`; None if `single` was not measured."""
    step_seconds: Estimate
    """Step seconds with synchronization, the slowest rank's mean."""
    repetitions: tuple[int, ...]
    """Repetitions in which all times behind the factors were measured."""
    missing: tuple[int, ...]
    """Stages whose seconds were not measured."""

    def of(self, part: Part) -> Factor | None:
        """The factor that a part belongs to, alone or with others."""
        return next((factor for factor in self.factors if part in factor.parts), None)


class References:
    """The usable trials of a sweep, indexed by what they ran; see
    `configuration.usable_repetitions`."""

    def __init__(self, records: Sequence[TrialRecord]) -> None:
        self._records = {_work(record.trial): record for record in records}
        self._own = {_timed(record.trial): record for record in records}

    def find(self, trial: TrialSpec) -> TrialRecord | None:
        """The trial of the same work, of its own kind of scaling if the sweep has both."""
        return self._own.get(_timed(trial)) or self._records.get(_work(trial))

    def single(self, trial: TrialSpec, batch_size: int) -> TrialRecord | None:
        """The plain module on the first device, in the same repetition."""
        return self.find(
            replace(
                trial.of_one_replica,
                implementation=SINGLE,
                backend="none",
                batch_size=batch_size,
            )
        )

    def independent(self, trial: TrialSpec) -> TrialRecord | None:
        """As many plain copies on the same devices, in the same repetition."""
        return self.find(replace(trial, implementation=INDEPENDENT, backend="none"))


def factor(records: Sequence[TrialRecord], references: References) -> Factors:
    """The factors of the usable repetitions of one configuration; at least one record."""
    ways = {record.trial.repetition: way(record, references) for record in records}
    places, repetitions = _comparable(ways)
    trial = records[0].trial
    chosen = [
        [seconds for place in places if (seconds := ways[repetition][place]) is not None]
        for repetition in repetitions
    ]
    reached = [seconds[-1] for seconds in chosen]
    factors = [
        _factor(PARTS[first:last], trial, [seconds[k : k + 2] for seconds in chosen], reached)
        for k, (first, last) in enumerate(pairwise(places))
    ]
    ideal = [seconds[0] for seconds in chosen] if places[0] == IDEAL else []
    return Factors(
        factors=tuple(factors),
        efficiency=_quotient(ideal, reached, "of linear") if ideal else None,
        step_seconds=LogMean.of_runs(reached).estimate("s"),
        repetitions=tuple(repetitions),
        missing=tuple(place for place in range(len(PARTS) + 1) if place not in places),
    )


def way(record: TrialRecord, references: References) -> Way:
    """Seconds of a step at all stages from ideal to reached, in one repetition."""
    trial = record.trial
    ideal, sharded = _alone(trial, references)
    reached = slowest_rank_step_seconds(record)
    if trial.group_size == 1:
        # Nothing is sharded or contended; any extra cost of the step is the wrapper's.
        return (ideal, ideal, ideal, reached, reached, reached, reached)
    if trial.implementation == INDEPENDENT:
        copies = mean_rank_step_seconds(record)
        return (ideal, sharded, copies, copies, reached, reached, reached)
    contended = _step_seconds(references.independent(trial))
    if (without := steps_without_sync(record)) is None:
        return (ideal, sharded, contended, None, None, None, reached)
    waiting = free_communication_seconds(record)
    if trial.process_count == 1:
        # A process that drives all replicas has one clock, which measures the slowest in each step.
        return (ideal, sharded, contended, None, None, waiting, reached)
    return (ideal, sharded, contended, fmean(without), max(without), waiting, reached)


def parts_of_one(trial: TrialSpec) -> frozenset[Part]:
    """The parts that are 1 by definition, because such a trial does not have them."""
    parts: set[Part] = set() if trial.scaling == "strong" else {"granularity"}
    if trial.group_size == 1:
        parts |= set(PARTS) - {"wrapper"}
    elif trial.implementation == INDEPENDENT:
        parts |= {"wrapper", "stragglers", "communication"}
    return frozenset(parts)


def _step_seconds(record: TrialRecord | None) -> float | None:
    return None if record is None else mean_rank_step_seconds(record)


def _alone(trial: TrialSpec, references: References) -> tuple[float | None, float | None]:
    """Seconds of `single`: an equal share of its step at the global batch; and at the actual
    shards.

    Shards of strong scaling may differ by one sample; then their mean counts, and the slower rank
    with the larger shard shows up in the balance.
    """
    sizes = trial.replica_batch_sizes
    steps = {size: _step_seconds(references.single(trial, size)) for size in set(sizes)}
    shards = [seconds for size in sizes if (seconds := steps[size]) is not None]
    sharded = math.fsum(shards) / len(sizes) if len(shards) == len(sizes) else None
    if trial.scaling == "weak":
        return sharded, sharded
    whole = _step_seconds(references.single(trial, trial.batch_size))
    return None if whole is None else whole / trial.group_size, sharded


def _comparable(ways: Mapping[int, Way]) -> tuple[list[int], list[int]]:
    """The stages that have seconds, and the repetitions that have them all.

    If some repetitions lack a stage, the others are kept; a stage that would leave none is dropped.
    """
    repetitions, places = set(ways), []
    for place in (REACHED, IDEAL, WAITING, UNBALANCED, WRAPPED, CONTENDED, SHARDED):
        having = {repetition for repetition in repetitions if ways[repetition][place] is not None}
        if having:
            repetitions = having
            places.append(place)
    return sorted(places), sorted(repetitions)


def _factor(
    parts: tuple[Part, ...],
    trial: TrialSpec,
    seconds: Sequence[Sequence[float]],
    reached: Sequence[float],
) -> Factor:
    before, after = zip(*seconds, strict=True)
    shares = [(b - a) / r for a, b, r in zip(before, after, reached, strict=True)]
    known = set(parts) <= parts_of_one(trial)
    return Factor(
        parts=parts,
        value=BASELINE if known else _quotient(before, after, "×"),
        share=mean(shares, unit="of the step"),
    )


def _quotient(before: Sequence[float], after: Sequence[float], unit: str) -> Estimate:
    ratios = [a / b for a, b in zip(before, after, strict=True)]
    return LogMean.of_runs(ratios).estimate(unit)


def _work(trial: TrialSpec) -> TrialSpec:
    """A lookup key that is equal for weak and strong scaling of one replica."""
    return replace(_timed(trial), scaling="weak" if trial.group_size == 1 else trial.scaling)


def _timed(trial: TrialSpec) -> TrialSpec:
    """The trial without settings that do not change its timed steps: a lookup key."""
    return replace(
        trial.with_own_settings,
        phase_steps=0,
        trace_steps=0,
        gradient_steps=0,
    )

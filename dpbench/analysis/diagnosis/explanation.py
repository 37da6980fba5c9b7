"""Why a configuration is as fast as it is: factors, phases, traffic, and the ranks others wait for.

Phases are measured in separate steps that wait for the device at every change of phase, so they are
slower than timed steps where a device could have run ahead; they are never scaled to fit, and their
sum is shown beside the timed step. Every phase is the mean over steps and over ranks: all ranks
step together, so means add up to a step, which the slowest rank of each phase would not.

Communication is backward with synchronization - backward without it: the exposed part, waiting for
slower ranks included. Noise can make it negative; it is not clipped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from statistics import fmean
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from dpbench import units
from dpbench.analysis import throughput
from dpbench.analysis.configuration import (
    ConfigurationSummary,
    by_configuration,
    usable_repetitions,
)
from dpbench.analysis.diagnosis.factors import (
    CONTENDED,
    IDEAL,
    PARTS,
    SHARDED,
    Factors,
    Part,
    References,
    factor,
)
from dpbench.analysis.estimate import Estimate, Floats, mean
from dpbench.analysis.throughput import (
    seconds_between_synchronizations,
    steps_between_synchronizations,
    steps_without_sync,
)
from dpbench.records.trial import TrialRecord
from dpbench.specs import TrialSpec
from dpbench.specs.traits import IMPLEMENTATIONS

PhaseName = Literal["data", "forward", "backward", "communication", "optimizer"]
PHASES: tuple[PhaseName, ...] = get_args(PhaseName)
"""Phases in the order of a step."""
ReplicaPhaseName = Literal["scatter", "replicate", "compute", "gather", "reduce"]
REPLICA_PHASES: tuple[ReplicaPhaseName, ...] = get_args(ReplicaPhaseName)
"""Phases within forward and backward of a process that drives all replicas, in the order of a
step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseEstimate:
    """One phase of the mean instrumented step."""

    name: PhaseName
    seconds: Estimate
    share: Estimate
    """Share of the instrumented step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepPhases:
    """The phases of one configuration; their seconds add up to the instrumented step's."""

    phases: tuple[PhaseEstimate, ...]
    """Phases; without communication if it cannot be separated from backward, or if there is
    none."""
    instrumented_step_seconds: Estimate
    timed_step_seconds: Estimate
    """Seconds of the mean step of the timed window, averaged over ranks like the phases."""
    steps: int
    """Number of instrumented steps of each rank and repetition."""
    of_replicas: dict[ReplicaPhaseName, Estimate] = field(default_factory=dict)
    """Seconds of the parts of forward and backward; empty if each replica has its own process."""


def step_phases(records: Sequence[TrialRecord]) -> StepPhases | None:
    """The phases over the repetitions of a configuration; None unless all ranks measured them."""
    measured = [(record, found) for record in records if (found := phase_seconds(record))]
    if not measured:
        return None
    kept, each = [record for record, _ in measured], [seconds for _, seconds in measured]
    names = [name for name in PHASES if all(name in seconds for seconds in each)]
    return StepPhases(
        phases=tuple(
            PhaseEstimate(
                name=name,
                seconds=mean([seconds[name] for seconds in each], unit="s"),
                share=mean(
                    [seconds[name] / sum(seconds.values()) for seconds in each], unit="of the step"
                ),
            )
            for name in names
        ),
        instrumented_step_seconds=mean([sum(seconds.values()) for seconds in each], unit="s"),
        timed_step_seconds=mean(
            [_mean(rank.timed.step_seconds for rank in record.ranks) for record in kept], unit="s"
        ),
        steps=min(
            len(rank.phases.data_seconds) for record in kept for rank in record.ranks if rank.phases
        ),
        of_replicas=_of_replicas(kept),
    )


def _of_replicas(records: Sequence[TrialRecord]) -> dict[ReplicaPhaseName, Estimate]:
    measured = [[rank.replica_phases for rank in record.ranks] for record in records]
    told = [[phases for phases in ranks if phases is not None] for ranks in measured]
    if told != measured:
        return {}
    return {
        name: mean([_mean(map(attrgetter(f"{name}_seconds"), ranks)) for ranks in told], unit="s")
        for name in REPLICA_PHASES
    }


def phase_seconds(record: TrialRecord) -> dict[PhaseName, float] | None:
    """Seconds of each phase of one trial's mean step; None unless all its ranks measured them."""
    full = [rank.phases for rank in record.ranks if rank.phases is not None]
    bare = [rank.phases_without_sync for rank in record.ranks if rank.phases_without_sync]
    if not full or len(full) < len(record.ranks):
        return None
    seconds: dict[PhaseName, float] = {
        "data": _mean([phases.data_seconds for phases in full]),
        "forward": _mean([phases.forward_seconds for phases in full]),
        "backward": _mean([phases.backward_seconds for phases in full]),
        "optimizer": _mean([phases.optimizer_seconds for phases in full]),
    }
    if len(bare) == len(full):
        without = _mean([phases.backward_seconds for phases in bare])
        seconds |= {"backward": without, "communication": seconds["backward"] - without}
    return seconds


def _mean(ranks: Iterable[Sequence[float]]) -> float:
    return fmean(fmean(steps) for steps in ranks)


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


def _waiting(record: TrialRecord) -> tuple[NDArray[np.int64], Floats]:
    """(index of the slowest rank, seconds that the mean rank waits for it) for every step.

    The ranks' typical steps are equalized first, so that only differences of single steps remain.
    This uses medians, because a mean raised by a few slow steps would make all other steps look
    fast.
    """
    spans = seconds_between_synchronizations(record)
    spans = spans - np.median(spans, axis=1, keepdims=True)
    return spans.argmax(axis=0), spans.max(axis=0) - spans.mean(axis=0)


def _worst(lost: Floats) -> tuple[int, ...]:
    """The fewest steps that hold half of the waiting; () if they are many, or most of all."""
    order = np.argsort(-lost, kind="stable")
    count = int(np.searchsorted(np.cumsum(lost[order]), HALF * lost.sum())) + 1
    if count > MOST_STEPS or count > len(lost) / 10:
        return ()
    return tuple(sorted(order[:count].tolist()))


@dataclass(frozen=True, kw_only=True, slots=True)
class SlowestRank:
    """The rank that most often took longest without synchronization."""

    rank: int
    device: str
    """Device, with its host if there are several."""
    slowest_in: int
    """Number of repetitions in which it was the slowest."""
    repetitions: int

    @property
    def plain(self) -> int:
        return self.rank

    @property
    def always(self) -> bool:
        return self.slowest_in == self.repetitions


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    """One configuration: its row of the table, its factors, and reports of its ranks."""

    row: ConfigurationSummary
    trial: TrialSpec
    factors: Factors
    slowest_rank: SlowestRank | None
    stragglers: Stragglers | None
    """Stragglers; None if steps of several ranks without synchronization were not measured."""
    phases: StepPhases | None
    notes: tuple[str, ...]
    """Notes on effects that could not be separated, and what to measure for that."""


def explain(
    records: Sequence[TrialRecord], rows: Sequence[ConfigurationSummary]
) -> tuple[Explanation, ...]:
    """Explain every row that has a speed, except `single` and one `independent` copy, which equals
    it.

    `rows` are summaries of some or all records; the records include the references `single` and
    `independent`.
    """
    groups = by_configuration(records)
    usable = {trial: usable_repetitions(group) for trial, group in groups.items()}
    references = References([record for group in usable.values() for record in group])
    return tuple(
        _explanation(row, found, references)
        for row in rows
        if (trial := row.configuration) is not None
        and (trial.group_size > 1 or IMPLEMENTATIONS[trial.implementation].communicates)
        and (found := usable.get(trial))
    )


def _explanation(
    row: ConfigurationSummary, records: Sequence[TrialRecord], references: References
) -> Explanation:
    trial = records[0].trial.configuration
    factors = factor(records, references)
    return Explanation(
        row=row,
        trial=trial,
        factors=factors,
        slowest_rank=slowest_rank(records),
        stragglers=stragglers(records),
        phases=step_phases(records),
        notes=(*_unresolved(row, trial, factors), *_left_out(row, factors)),
    )


def slowest_rank(records: Sequence[TrialRecord]) -> SlowestRank | None:
    """The rank that others wait for; None for one process, or without a window without
    synchronization.

    With synchronization all ranks take equally long, as the fast ones wait.
    """
    traits = IMPLEMENTATIONS[records[0].trial.implementation]
    if traits.communicates and any(steps_without_sync(record) is None for record in records):
        return None
    ranks = [rank for record in records if (rank := throughput.slowest_rank(record)) is not None]
    if not ranks:
        return None
    (rank, count), *_ = Counter(ranks).most_common(1)
    return SlowestRank(
        rank=rank,
        device=records[0].trial.place_of(rank),
        slowest_in=count,
        repetitions=len(ranks),
    )


def _unresolved(row: ConfigurationSummary, trial: TrialSpec, factors: Factors) -> list[str]:
    """Reasons why parts share a factor or have none, with the remedy."""
    notes = []
    if IDEAL in factors.missing:
        notes.append(
            f"{row.label}: no absolute efficiency, because `single` at batch {trial.batch_size} "
            "has no completed repetition in common with it"
        )
    for merged in (found.parts for found in factors.factors if len(found.parts) > 1):
        places = [PARTS.index(part) for part in merged[1:]]
        reasons = dict.fromkeys(_reason(trial, place) for place in places)
        notes.append(f"{_listed(merged)} cannot be told apart: {'; '.join(reasons)}")
    return notes


def _reason(trial: TrialSpec, place: int) -> str:
    if place == SHARDED:
        sizes = ",".join(str(size) for size in sorted(set(trial.replica_batch_sizes)))
        return f"no `single` at batch {sizes}; add {sizes} to --batch-sizes"
    if place == CONTENDED:
        return "no `independent` rows; add independent to --implementations"
    if trial.process_count == 1:
        return f"{trial.implementation} drives all replicas from one process, which has one clock"
    return f"{trial.implementation} has no window without synchronization"


def _left_out(row: ConfigurationSummary, factors: Factors) -> list[str]:
    if len(factors.repetitions) >= row.repetitions:
        return []
    return [
        f"{row.label}: factors over {len(factors.repetitions)} of "
        f"{units.counted(row.repetitions, 'repetition')}; in the others something that it is "
        "compared with did not complete"
    ]


def _listed(parts: Sequence[Part]) -> str:
    return f"{', '.join(parts[:-1])} and {parts[-1]}"

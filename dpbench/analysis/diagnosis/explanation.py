"""Why a configuration is as fast as it is: factors, traffic, and the ranks that others wait for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

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
from dpbench.analysis.diagnosis.phases import StepPhases, step_phases
from dpbench.analysis.throughput import (
    Seconds,
    seconds_between_synchronizations,
    steps_between_synchronizations,
    steps_without_sync,
)
from dpbench.records import TrialRecord
from dpbench.specs import TrialSpec
from dpbench.traits import IMPLEMENTATIONS

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

"""Time of each part of a step: data, forward, backward, communication, optimizer.

They are measured in separate steps that wait for the device at every change of phase, so they are
slower than timed steps where a device could have run ahead; they are never scaled to fit, and their
sum is shown beside the timed step. Every phase is the mean over steps and over ranks: all ranks
step together, so means add up to a step, which the slowest rank of each phase would not.

Communication is backward with synchronization - backward without it: the exposed part, waiting for
slower ranks included. Noise can make it negative; it is not clipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Literal, get_args

from dpbench.analysis.estimate import Estimate, mean
from dpbench.records import TrialRecord

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
    totals = [sum(seconds.values()) for _, seconds in measured]
    names = [name for name in PHASES if all(name in seconds for _, seconds in measured)]
    return StepPhases(
        phases=tuple(
            PhaseEstimate(
                name=name,
                seconds=mean([seconds[name] for _, seconds in measured], unit="s"),
                share=mean(
                    [
                        seconds[name] / total
                        for (_, seconds), total in zip(measured, totals, strict=True)
                    ],
                    unit="of the step",
                ),
            )
            for name in names
        ),
        instrumented_step_seconds=mean(totals, unit="s"),
        timed_step_seconds=mean([_timed_step_seconds(record) for record, _ in measured], unit="s"),
        steps=min(_steps(record) for record, _ in measured),
        of_replicas=_of_replicas([record for record, _ in measured]),
    )


def _of_replicas(records: Sequence[TrialRecord]) -> dict[ReplicaPhaseName, Estimate]:
    measured = [[rank.replica_phases for rank in record.ranks] for record in records]
    told = [[phases for phases in ranks if phases is not None] for ranks in measured]
    if told != measured:
        return {}
    columns: dict[ReplicaPhaseName, list[float]] = {
        "scatter": [_mean([phases.scatter_seconds for phases in ranks]) for ranks in told],
        "replicate": [_mean([phases.replicate_seconds for phases in ranks]) for ranks in told],
        "compute": [_mean([phases.compute_seconds for phases in ranks]) for ranks in told],
        "gather": [_mean([phases.gather_seconds for phases in ranks]) for ranks in told],
        "reduce": [_mean([phases.reduce_seconds for phases in ranks]) for ranks in told],
    }
    return {name: mean(columns[name], unit="s") for name in REPLICA_PHASES}


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


def _mean(ranks: Sequence[Sequence[float]]) -> float:
    return fmean([fmean(steps) for steps in ranks])


def _timed_step_seconds(record: TrialRecord) -> float:
    return _mean([rank.timed.step_seconds for rank in record.ranks])


def _steps(record: TrialRecord) -> int:
    return min(len(rank.phases.data_seconds) for rank in record.ranks if rank.phases)

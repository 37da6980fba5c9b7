"""The phases of a step: data, forward, backward, communication, optimizer.

Phases are measured in separate steps that wait for the device at every change of phase, so they are
slower than timed steps where a device could have run ahead; they are never scaled to fit, and their
sum is shown beside the timed step. Every phase is the mean over steps and over ranks: all ranks
step together, so means add up to a step, which the slowest rank of each phase would not.

Communication is backward with synchronization - backward without it: the exposed part, waiting for
slower ranks included. Noise can make it negative; it is not clipped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from statistics import fmean
from typing import Literal, get_args

from dpbench.analysis.estimate import Estimate, mean
from dpbench.records.trial import TrialRecord

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

    def of(self, name: PhaseName) -> PhaseEstimate | None:
        return next((phase for phase in self.phases if phase.name == name), None)


def step_phases(records: Sequence[TrialRecord]) -> StepPhases | None:
    """The phases over the repetitions of a configuration; None unless all ranks measured them."""
    measured = [(record, found) for record in records if (found := phase_seconds(record))]
    if not measured:
        return None
    kept, each = [record for record, _ in measured], [seconds for _, seconds in measured]
    totals = [sum(seconds.values()) for seconds in each]
    timed = [_mean(rank.timed.step_seconds for rank in record.ranks) for record in kept]
    parts = [[rank.replica_phases for rank in record.ranks] for record in kept]
    known = [[one for one in ranks if one is not None] for ranks in parts]
    return StepPhases(
        phases=tuple(
            PhaseEstimate(
                name=name,
                seconds=mean([seconds[name] for seconds in each], unit="s"),
                share=mean(
                    [
                        seconds[name] / total if total else 0.0
                        for seconds, total in zip(each, totals, strict=True)
                    ],
                    unit="of the step",
                ),
            )
            for name in PHASES
            if all(name in seconds for seconds in each)
        ),
        instrumented_step_seconds=mean(totals, unit="s"),
        timed_step_seconds=mean(timed, unit="s"),
        steps=min(
            len(rank.phases.data_seconds) for record in kept for rank in record.ranks if rank.phases
        ),
        of_replicas={}
        if known != parts
        else {
            name: mean(
                [_mean(map(attrgetter(f"{name}_seconds"), ranks)) for ranks in known], unit="s"
            )
            for name in REPLICA_PHASES
        },
    )


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


def data_seconds(record: TrialRecord) -> list[float] | None:
    """Seconds until the batch is on the device, of every rank; None unless all measured them."""
    phases = [rank.phases for rank in record.ranks if rank.phases is not None]
    if not phases or len(phases) < len(record.ranks):
        return None
    return [fmean(one.data_seconds) for one in phases]


def _mean(ranks: Iterable[Sequence[float]]) -> float:
    return fmean(fmean(steps) for steps in ranks)

"""The phases of a step: data, forward, backward, communication, optimizer.

Phases are measured in separate steps that wait for the device at every change of phase, so they are
slower than timed steps where a device could have run ahead; they are never scaled to fit. Every
phase is the mean over steps and over ranks: all ranks step together, so means add up to a step,
which the slowest rank of each phase would not.

Communication is backward with synchronization - backward without it: the exposed part, waiting for
slower ranks included. Noise can make it negative; it is not clipped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
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
    ranks = [[*record.ranks] for record, _ in measured]
    totals = [sum(seconds.values()) for _, seconds in measured]
    phases = []
    for name in PHASES:
        values = [seconds[name] for _, seconds in measured if name in seconds]
        if len(values) == len(measured):
            shares = [value / (total or 1.0) for value, total in zip(values, totals, strict=True)]
            seconds, share = mean(values, unit="s"), mean(shares, unit="of the step")
            phases.append(PhaseEstimate(name=name, seconds=seconds, share=share))
    inner = [[rank.replica_phases for rank in each if rank.replica_phases] for each in ranks]
    return StepPhases(
        phases=tuple(phases),
        instrumented_step_seconds=mean(totals, unit="s"),
        steps=min(len(rank.phases.data_seconds) for each in ranks for rank in each if rank.phases),
        of_replicas={
            name: mean(
                [_mean(getattr(one, f"{name}_seconds") for one in each) for each in inner], unit="s"
            )
            for name in REPLICA_PHASES
            if all(inner)
        },
    )


def phase_seconds(record: TrialRecord) -> dict[PhaseName, float] | None:
    """Seconds of each phase of one trial's mean step; None unless all its ranks measured them."""
    full = [rank.phases for rank in record.ranks if rank.phases is not None]
    bare = [rank.phases_without_sync for rank in record.ranks if rank.phases_without_sync]
    if not full or len(full) < len(record.ranks):
        return None
    seconds: dict[PhaseName, float] = {
        "data": _mean(phases.data_seconds for phases in full),
        "forward": _mean(phases.forward_seconds for phases in full),
        "backward": _mean(phases.backward_seconds for phases in full),
        "optimizer": _mean(phases.optimizer_seconds for phases in full),
    }
    if len(bare) == len(full):
        without = _mean(phases.backward_seconds for phases in bare)
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

"""The phases of a step: data, forward, backward, communication, optimizer.

Phases are measured in separate steps that wait for the device at every change of phase, so they are
slower than timed steps where a device could have run ahead; they are never scaled to fit. Every
phase is the mean over steps and over ranks: all ranks step together, so means add up to a step,
which the slowest rank of each phase would not.

Communication is backward with synchronization - backward without it: the exposed part, waiting for
slower ranks included. Noise can make it negative; it is not clipped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from dpbench.analysis.estimate import Estimate, mean
from dpbench.records.trial import TrialRecord

PhaseName = Literal["data", "forward", "backward", "communication", "optimizer"]
REPLICA_PHASES = ("scatter", "replicate", "compute", "gather", "reduce")
"""Phases within forward and backward of a process that drives all replicas, in the order of a
step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepPhases:
    """The phases of one configuration; their seconds add up to the instrumented step's."""

    seconds: Mapping[PhaseName, Estimate]
    """Phases in the order of a step; without communication if it cannot be separated from backward,
    or if there is none."""
    step_seconds: Estimate
    """Seconds of the instrumented step."""
    data_share: Estimate
    """Share of the instrumented step that is spent on data."""
    steps: int
    """Number of instrumented steps of each rank and repetition."""
    of_replicas: Mapping[str, Estimate]
    """Seconds of the parts of forward and backward; empty if each replica has its own process."""


def step_phases(records: Sequence[TrialRecord]) -> StepPhases | None:
    """The phases over the repetitions of a configuration; None unless all ranks measured them."""
    measured = [one for one in records if one.ranks and all(rank.phases for rank in one.ranks)]
    if not measured:
        return None
    phases = [*map(_phase_seconds, measured)]
    totals = [sum(found.values()) for found in phases]
    shares = [found["data"] / (total or 1.0) for found, total in zip(phases, totals, strict=True)]
    ranks = [rank for record in measured for rank in record.ranks]
    inner = [[rank.replica_phases for rank in record.ranks] for record in measured]
    return StepPhases(
        seconds={
            name: mean([found[name] for found in phases], unit="s")
            for name in phases[0]
            if all(name in found for found in phases)
        },
        step_seconds=mean(totals, unit="s"),
        data_share=mean(shares, unit="of the step"),
        steps=min(len(rank.phases.data_seconds) for rank in ranks if rank.phases),
        of_replicas={
            name: mean(
                [_mean(getattr(one, f"{name}_seconds") for one in each) for each in inner], unit="s"
            )
            for name in REPLICA_PHASES
            if all(map(all, inner))
        },
    )


def _phase_seconds(record: TrialRecord) -> dict[PhaseName, float]:
    """Seconds of each phase of one trial's mean step."""
    full = [rank.phases for rank in record.ranks if rank.phases is not None]
    bare = [rank.phases_without_sync for rank in record.ranks if rank.phases_without_sync]
    backward = _mean(phases.backward_seconds for phases in full)
    parts: dict[PhaseName, float] = {"backward": backward}
    if len(bare) == len(full):
        without = _mean(phases.backward_seconds for phases in bare)
        parts = {"backward": without, "communication": backward - without}
    return {
        "data": _mean(phases.data_seconds for phases in full),
        "forward": _mean(phases.forward_seconds for phases in full),
        **parts,
        "optimizer": _mean(phases.optimizer_seconds for phases in full),
    }


def _mean(ranks: Iterable[Sequence[float]]) -> float:
    return fmean(fmean(steps) for steps in ranks)

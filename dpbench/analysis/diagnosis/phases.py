"""The phases of a step: data, forward, backward, communication, optimizer.

Phases are measured in separate steps that wait for the device at every change of phase, so they are
slower than timed steps where a device could have run ahead; they are never scaled to fit. Every
phase is the mean over steps and over ranks: all ranks step together, so means add up to a step,
which the slowest rank of each phase would not.

Communication is backward with synchronization - backward without it: the exposed part, waiting for
slower ranks included. Noise can make it negative; it is not clipped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal, get_args

import numpy as np

from dpbench.analysis.estimate import Estimate, mean
from dpbench.analysis.throughput import MIN_SECONDS
from dpbench.records.trial import ReplicaPhase, TrialRecord

PhaseName = Literal["data", "forward", "backward", "communication", "optimizer"]
REPLICA_PHASES: tuple[ReplicaPhase, ...] = get_args(ReplicaPhase)


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
    measured = [r for r in records if r.ranks and all("timed" in rank.phases for rank in r.ranks)]
    if not measured:
        return None
    ranks = [record.ranks for record in measured]
    full = [[rank.phases["timed"] for rank in trial] for trial in ranks]
    bare = [[rank.phases.get("unsynced") for rank in trial] for trial in ranks]
    inner = [[rank.replica_phases for rank in trial] for trial in ranks]
    before: tuple[PhaseName, ...] = ("data", "forward", "backward")
    seconds = {name: _phase_means(full, name) for name in before}
    if all(map(all, bare)):
        with_sync, seconds["backward"] = seconds["backward"], _phase_means(bare, "backward")
        seconds["communication"] = np.subtract(with_sync, seconds["backward"]).tolist()
    seconds["optimizer"] = _phase_means(full, "optimizer")
    totals = np.sum([*seconds.values()], axis=0)
    shares = np.divide(seconds["data"], np.maximum(totals, MIN_SECONDS))
    return StepPhases(
        seconds={name: mean(values, unit="s") for name, values in seconds.items()},
        step_seconds=mean(totals.tolist(), unit="s"),
        data_share=mean(shares.tolist(), unit="of the step"),
        steps=min(len(phases["data"]) for trial in full for phases in trial),
        of_replicas={
            name: mean(_phase_means(inner, name), unit="s")
            for name in REPLICA_PHASES
            if all(map(all, inner))
        },
    )


def _phase_means(of_ranks: Sequence[Sequence[Any]], name: str) -> list[float]:
    """The mean of a phase over steps and ranks, in each repetition."""
    return [fmean(fmean(phases[name]) for phases in ranks) for ranks in of_ranks]

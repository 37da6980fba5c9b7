"""Why a configuration is as fast as it is, as values: factors, phases, the rank that others wait
for, and advice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from dpbench.analysis.diagnosis.factors import Factors, Part
from dpbench.analysis.diagnosis.phases import StepPhases
from dpbench.analysis.diagnosis.script import Symptom
from dpbench.analysis.estimate import Estimate
from dpbench.analysis.row import Row
from dpbench.analysis.scaling import reference_of
from dpbench.analysis.steps import SlowSteps
from dpbench.specs import TrialSpec
from dpbench.specs.traits import IMPLEMENTATIONS

AdviceKind = Part | Literal["data", "slow steps", "not separated"]


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
    def always(self) -> bool:
        return self.slowest_in == self.repetitions


@dataclass(frozen=True, kw_only=True, slots=True)
class Advice:
    """One large loss of one configuration, and what to do about it."""

    kind: AdviceKind
    share: Estimate
    """The lost share of the step's seconds."""
    loss: str
    """Name of the loss: "exposed communication on gloo"."""
    remedy: str
    """Advice on what to try, or why there is nothing to try: "try shm (same host)"."""

    @property
    def text(self) -> str:
        """Loss and remedy as text."""
        return f"{self.loss}: {self.remedy}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    """One configuration: its row of the table, its factors, and what else was found."""

    row: Row
    trial: TrialSpec
    factors: Factors
    slowest_rank: SlowestRank | None
    phases: StepPhases | None
    slow_steps: SlowSteps | None
    notes: tuple[str, ...]
    """Notes on effects that could not be separated, and what to measure for that."""
    symptoms: tuple[Symptom, ...] = ()
    """Symptoms of a training script."""
    advice: tuple[Advice, ...] = ()
    """Advice on large losses, the largest first."""

    @property
    def communicates(self) -> bool:
        """Whether its ranks wait for each other, unlike independent copies."""
        return IMPLEMENTATIONS[self.trial.implementation].communicates

    @property
    def is_too_noisy(self) -> bool:
        """Whether its speed or efficiency is too noisy to state, and so to explain."""
        found = self.factors.efficiency
        return self.row.is_too_noisy or (found is not None and found.is_too_noisy)


def not_too_noisy(explanations: Sequence[Explanation]) -> tuple[Explanation, ...]:
    """Those that are not too noisy to show."""
    return tuple(one for one in explanations if not one.is_too_noisy)


def trained_together(explanations: Sequence[Explanation]) -> tuple[Explanation, ...]:
    """Those of several replicas that are one model."""
    return tuple(one for one in explanations if one.trial.group_size > 1 and one.communicates)


def fastest(explanations: Sequence[Explanation]) -> tuple[Explanation, ...]:
    """The fastest configuration with several replicas that train together; all if there is none."""
    together = trained_together(explanations)
    if not together:
        return tuple(explanations)
    speeds = [one.row.throughput.value if one.row.throughput else 0.0 for one in together]
    return (together[speeds.index(max(speeds))],)


def noisiest(explained: Explanation, rows: Sequence[Row]) -> tuple[Row, Estimate]:
    """The row whose speed has the widest interval, with that speed: the explained row itself, or
    what its speedup is against."""
    known = {row.trial: row for row in rows if row.trial}
    trial = explained.trial
    inputs = (trial, reference_of(known)(trial))
    speeds = [(row, row.throughput) for one in inputs if (row := known.get(one)) and row.throughput]
    return max(speeds, key=lambda found: found[1].ends[1] / found[1].ends[0])

"""Why a configuration is as fast as it is: where it loses time, which rank is slow, what could not
be separated, and what to try."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from dpbench import units
from dpbench.analysis.diagnosis.factors import (
    CONTENDED,
    IDEAL,
    PARTS,
    SHARDED,
    Breakdown,
    Part,
    References,
    break_down,
    references_of,
)
from dpbench.analysis.diagnosis.phases import StepPhases, step_phases
from dpbench.analysis.diagnosis.script import Symptom, symptoms
from dpbench.analysis.estimate import Estimate
from dpbench.analysis.row import Row
from dpbench.analysis.scaling import reference_of
from dpbench.analysis.steps import SlowSteps, slow_steps
from dpbench.analysis.throughput import slowest_rank, steps_without_sync
from dpbench.records.trial import TrialRecord
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
    breakdown: Breakdown
    noisiest: Row
    """The row whose speed has the widest interval: itself, or what its speedup is against."""
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
        found = self.breakdown.efficiency
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


def explanations_of(rows: Sequence[Row]) -> list[Explanation]:
    """Explanations without advice of all rows of a sweep that have a speed, except `single` and one
    `independent` copy, which equals it; `rows` include those two, as references."""
    references = references_of(record for row in rows for record in row.records)
    known = {row.trial: row for row in rows if row.trial}
    find_baseline = reference_of(known)
    return [
        _explain(row, row.trial, references, known.get(find_baseline(row.trial), row))
        for row in rows
        if row.trial is not None and row.records
        if row.group_size > 1 or IMPLEMENTATIONS[row.implementation].communicates
    ]


def _explain(row: Row, trial: TrialSpec, references: References, baseline: Row) -> Explanation:
    """Explain a row, whose speedup is against `baseline`."""

    def spread(one: Row) -> float:
        low, high = one.throughput.ends if one.throughput else (1.0, 1.0)
        return high / low

    breakdown = break_down(row.records, references)
    return Explanation(
        row=row,
        trial=trial,
        breakdown=breakdown,
        noisiest=max((row, baseline), key=spread),
        slowest_rank=slowest_of(row.records),
        phases=step_phases(row.records),
        slow_steps=slow_steps(row.records, breakdown.slow_first_steps),
        notes=tuple(_notes(row, trial, breakdown)),
        symptoms=symptoms(row.records, breakdown),
    )


def slowest_of(records: Sequence[TrialRecord]) -> SlowestRank | None:
    """The rank that others wait for; None for one process, or without a window without
    synchronization.

    With synchronization all ranks take equally long, as the fast ones wait.
    """
    traits = IMPLEMENTATIONS[records[0].trial.implementation]
    if traits.communicates and any(steps_without_sync(record) is None for record in records):
        return None
    ranks = [rank for record in records if (rank := slowest_rank(record)) is not None]
    if not ranks:
        return None
    (rank, count), *_ = Counter(ranks).most_common(1)
    return SlowestRank(
        rank=rank,
        device=records[0].trial.place_of(rank),
        slowest_in=count,
        repetitions=len(ranks),
    )


def _notes(row: Row, trial: TrialSpec, breakdown: Breakdown) -> Iterator[str]:
    """Reasons why parts share a factor or have none, with the remedy; repetitions left out."""
    if IDEAL in breakdown.missing:
        batch = f" at batch {trial.batch_size}" if trial.batch_size else ""
        yield (
            f"{row.label}: its factors give no efficiency, because `single`{batch} has no "
            "completed repetition in common with it"
        )
    for merged in (found.parts for found in breakdown.factors if len(found.parts) > 1):
        stages = [PARTS.index(part) for part in merged[1:]]
        reasons = dict.fromkeys(_not_measured(trial, stage, breakdown) for stage in stages)
        listed = f"{', '.join(merged[:-1])} and {merged[-1]}"
        yield f"{listed} cannot be separated: {'; '.join(reasons)}"
    if len(breakdown.repetitions) < row.repetitions:
        yield (
            f"{row.label}: factors over {len(breakdown.repetitions)} of "
            f"{units.counted(row.repetitions, 'repetition')}; in the others something that it is "
            "compared with did not complete"
        )


def _not_measured(trial: TrialSpec, stage: int, breakdown: Breakdown) -> str:
    """Why a stage of a step was not measured, and how it can be."""
    runs_alone = SHARDED not in breakdown.missing
    if trial.workload.script and (stage == SHARDED or (stage == CONTENDED and not runs_alone)):
        return "the script does not run on one rank alone"
    if trial.workload.script and stage != CONTENDED:
        return "the script has no DistributedDataParallel whose averaging could be left out"
    if stage == SHARDED:
        sizes = ",".join(str(size) for size in sorted(set(trial.replica_batch_sizes)))
        return f"no `single` at batch {sizes}; add {sizes} to --batch-sizes"
    if stage == CONTENDED:
        return "no `independent` rows; add independent to --implementations"
    if trial.process_count == 1:
        return f"{trial.implementation} drives all replicas from one process, which has one clock"
    return f"{trial.implementation} has no window without synchronization"

"""Why a configuration is as fast as it is: where it loses time, which rank is slow, what could not
be separated, and what to try."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dpbench.analysis.diagnosis.factors import (
    CONTENDED,
    IDEAL,
    PARTS,
    SHARDED,
    Breakdown,
    break_down,
    is_large_loss,
    trials_by_key,
)
from dpbench.analysis.diagnosis.phases import StepPhases, step_phases
from dpbench.analysis.estimate import Estimate, mean
from dpbench.analysis.noise import repetitions_to_state
from dpbench.analysis.rows import Row
from dpbench.analysis.scaling import reference_finder
from dpbench.analysis.throughput import (
    SlowSteps,
    rank_step_seconds,
    slow_steps,
    steps_without_sync,
)
from dpbench.messages import option_words
from dpbench.records.trial import TrialRecord
from dpbench.specs import Configuration
from dpbench.specs.traits import IMPLEMENTATIONS


@dataclass(frozen=True, kw_only=True, slots=True)
class SlowestRank:
    """The rank that most often took longest without synchronization."""

    rank: int
    device: str
    """Device, with its node if there are several."""
    slowest_in: int
    """Number of repetitions in which it was the slowest."""
    repetitions: int
    behind: Estimate
    """Share of its step by which it is slower than the mean of the others."""

    @property
    def is_slow(self) -> bool:
        """Whether it is the slowest in all repetitions, and by more than chance or a trifle: among
        two equal ranks one is the slowest in all of four repetitions in one case of eight."""
        return self.slowest_in == self.repetitions and is_large_loss(self.behind)


@dataclass(frozen=True, kw_only=True, slots=True)
class Cause:
    """Something that makes a configuration slow, or wrong, and what to do about it."""

    kind: str
    text: str
    """What it is: "exposed communication on gloo"."""
    remedy: str
    """What to try, or why there is nothing to try: "try shm (same host)"."""
    share: Estimate | None = None
    """Share of the step's seconds; None if it was not measured."""
    is_bound: bool = False
    """Whether the share is that of a loss of which it is a part."""
    is_wrong: bool = False
    """Whether the training is wrong, at any speed."""
    option: str = ""
    """The option of `dpbench sweep` that measures what the remedy brings, if there is one."""

    @property
    def order(self) -> tuple[bool, float]:
        """What is wrong comes first, then the largest share; last what was not measured."""
        return not self.is_wrong, -self.share.value if self.share else 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    """One configuration: its row of the table, its factors, and what else was found."""

    row: Row
    configuration: Configuration
    reference: Row
    """The row that its speedup is against; itself if there is none."""
    breakdown: Breakdown
    slowest_rank: SlowestRank | None
    phases: StepPhases | None
    slow_steps: SlowSteps | None
    undetermined: tuple[str, ...]
    """Effects that could not be separated, and what to measure for that."""
    causes: tuple[Cause, ...] = ()
    """See `causes.causes_of`."""

    @property
    def communicates(self) -> bool:
        """Whether its ranks wait for each other, unlike independent copies."""
        return IMPLEMENTATIONS[self.configuration.implementation].communicates

    @property
    def too_noisy(self) -> tuple[Estimate, ...]:
        """Speed, speedup and efficiency, where they are too noisy to state, and so to explain."""
        estimates = (*self.row.too_noisy, self.breakdown.efficiency)
        return tuple(e for e in estimates if e is not None and e.is_too_noisy)

    @property
    def is_disturbed(self) -> bool:
        """Whether other processes disturbed it or what it is compared with."""
        return self.row.is_disturbed or self.reference.is_disturbed

    @property
    def repetitions_needed(self) -> int | None:
        """Number of repetitions, as noisy as these, that would give an efficiency; None if
        MAX_ADVISED would not, or if other processes would disturb them, too."""
        return None if self.is_disturbed else repetitions_to_state(self.too_noisy)


def not_too_noisy(explanations: Sequence[Explanation]) -> tuple[Explanation, ...]:
    """Those that are not too noisy to show."""
    return tuple(explanation for explanation in explanations if not explanation.too_noisy)


def trained_together(explanations: Sequence[Explanation]) -> tuple[Explanation, ...]:
    """Those of several replicas that are one model."""
    return tuple(e for e in explanations if e.row.group_size > 1 and e.communicates)


def fastest(explanations: Sequence[Explanation]) -> tuple[Explanation, ...]:
    """The fastest configuration with several replicas that train together; all if there is none."""
    together = trained_together(explanations)

    def speed(explanation: Explanation) -> float:
        throughput = explanation.row.throughput
        return throughput.value if throughput else 0.0

    return (max(together, key=speed),) if together else tuple(explanations)


def explanations_of(rows: Sequence[Row]) -> list[Explanation]:
    """Explanations, still without causes, of all rows of a sweep that have a speed, except `single`
    and one `independent` copy, which equals it; `rows` include those two, as references."""
    references = trials_by_key(record for row in rows for record in row.records)
    known = {row.configuration: row for row in rows if row.configuration}
    find_reference = reference_finder(known)
    explanations = []
    for row in rows:
        configuration = row.configuration
        if configuration is None or not row.records:
            continue
        if row.group_size == 1 and not IMPLEMENTATIONS[row.implementation].communicates:
            continue
        breakdown, warming = break_down(row.records, references), row.warm_up
        explanations.append(
            Explanation(
                row=row,
                configuration=configuration,
                reference=known.get(find_reference(configuration), row),
                breakdown=breakdown,
                slowest_rank=slowest_of(row.records),
                phases=step_phases(row.records),
                slow_steps=slow_steps(row.records, warming.steps if warming else 0),
                undetermined=tuple(_undetermined(row, configuration, breakdown)),
            )
        )
    return explanations


def slowest_of(records: Sequence[TrialRecord]) -> SlowestRank | None:
    """The rank that others wait for; None for one process, or without a window without
    synchronization.

    With synchronization all ranks take equally long, as the fast ones wait.
    """
    traits = IMPLEMENTATIONS[records[0].trial.implementation]
    if traits.communicates and any(steps_without_sync(record) is None for record in records):
        return None
    steps = np.array([rank_step_seconds(record) for record in records])
    if steps.shape[1] < 2:
        return None
    slowest = steps.argmax(axis=1)
    place = int(np.bincount(slowest).argmax())
    others = np.delete(steps, place, axis=1).mean(axis=1)
    rank = records[0].ranks[place].rank
    return SlowestRank(
        rank=rank,
        device=records[0].trial.device_name(rank),
        slowest_in=int((slowest == place).sum()),
        repetitions=len(records),
        behind=mean((1 - others / steps[:, place]).tolist(), unit="of the step"),
    )


def _undetermined(row: Row, configuration: Configuration, breakdown: Breakdown) -> Iterator[str]:
    """Reasons why parts share a factor or have none, with the remedy; repetitions left out."""
    if IDEAL in breakdown.missing:
        batch = f" at batch {row.batch_size}" if row.batch_size else ""
        yield (
            f"{row.label}: its factors give no efficiency, because `single`{batch} has no "
            "completed repetition in common with it"
        )
    for merged in (factor.parts for factor in breakdown.factors if len(factor.parts) > 1):
        stages = [PARTS.index(part) for part in merged[1:]]
        reasons = dict.fromkeys(_not_measured(configuration, stage, breakdown) for stage in stages)
        listed = f"{', '.join(merged[:-1])} and {merged[-1]}"
        yield f"{listed} cannot be separated: {'; '.join(reasons)}"


def _not_measured(configuration: Configuration, stage: int, breakdown: Breakdown) -> str:
    """Why a stage of a step was not measured, and how it can be."""
    runs_alone, name = SHARDED not in breakdown.missing, configuration.implementation
    if configuration.workload.script and (
        stage == SHARDED or (stage == CONTENDED and not runs_alone)
    ):
        return "the script does not run on one rank alone"
    if configuration.workload.script and stage != CONTENDED:
        return "the script has no DistributedDataParallel whose averaging could be left out"
    if stage == SHARDED:
        sizes = ",".join(str(size) for size in sorted(set(configuration.replica_batch_sizes)))
        return f"no `single` at batch {sizes}; add {sizes} to {option_words('batch_sizes')}"
    if stage == CONTENDED:
        return f"no `independent` rows; add independent to {option_words('implementations')}"
    if configuration.process_count == 1:
        return f"{name} drives all replicas from one process, which has one clock"
    return f"{name} has no window without synchronization"

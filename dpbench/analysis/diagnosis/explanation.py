"""Why a configuration is as fast as it is: factors, phases, and the ranks that others wait for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from dpbench import units
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
    References,
    factor,
    typical,
)
from dpbench.analysis.diagnosis.phases import StepPhases, data_seconds, step_phases
from dpbench.analysis.diagnosis.script import Symptom, symptoms
from dpbench.analysis.diagnosis.slow_steps import SlowSteps, slow_steps
from dpbench.analysis.diagnosis.user_code import UserCode, observed
from dpbench.analysis.estimate import Estimate
from dpbench.analysis.scaling import reference_of
from dpbench.analysis.throughput import slowest_rank as slowest_rank_of
from dpbench.analysis.throughput import steps_without_sync
from dpbench.records.trial import TrialRecord
from dpbench.specs import TrialSpec
from dpbench.specs.traits import IMPLEMENTATIONS


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
class Explanation:
    """One configuration: its row of the table, its factors, and reports of its ranks."""

    row: ConfigurationSummary
    trial: TrialSpec
    factors: Factors
    slowest_rank: SlowestRank | None
    phases: StepPhases | None
    slow_data_seconds: float
    """Seconds of a step by which data loading on the slowest rank exceeds the typical rank's."""
    slow_steps: SlowSteps | None
    notes: tuple[str, ...]
    """Notes on effects that could not be separated, and what to measure for that."""
    code: UserCode
    """Actions of the user's model or step that affect its speed."""
    symptoms: tuple[Symptom, ...] = ()
    """Symptoms of a training script."""

    @property
    def communicates(self) -> bool:
        """Whether its ranks wait for each other, unlike independent copies."""
        return IMPLEMENTATIONS[self.trial.implementation].communicates

    @property
    def is_too_noisy(self) -> bool:
        """Whether its speed or efficiency is too noisy to state, and so to explain."""
        found = self.factors.efficiency
        return self.row.is_too_noisy or (found is not None and found.is_too_noisy)


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
    explained = []
    for row in rows:
        trial = row.configuration
        if trial is None or not (found := usable.get(trial)):
            continue
        if trial.group_size == 1 and not IMPLEMENTATIONS[trial.implementation].communicates:
            continue
        factors = factor(found, references)
        loading = [seconds for record in found if (seconds := data_seconds(record)) is not None]
        explained.append(
            Explanation(
                row=row,
                trial=trial,
                factors=factors,
                slowest_rank=slowest_rank(found),
                phases=step_phases(found),
                slow_data_seconds=fmean(
                    [max(ranks) - typical(ranks) for ranks in loading] or [0.0]
                ),
                slow_steps=slow_steps(found, factors.slow_first_steps),
                notes=tuple(_notes(row, trial, factors)),
                code=observed(found),
                symptoms=symptoms(found, factors),
            )
        )
    return tuple(explained)


def trained_together(explanations: Sequence[Explanation]) -> list[Explanation]:
    """Those of several replicas that are one model."""
    return [
        one
        for one in explanations
        if one.trial.group_size > 1 and IMPLEMENTATIONS[one.trial.implementation].communicates
    ]


def fastest(explanations: Sequence[Explanation]) -> tuple[Explanation, ...]:
    """The fastest configuration with several replicas that train together; all if there is none."""
    together = trained_together(explanations)
    if not together:
        return tuple(explanations)
    speeds = [one.row.throughput.value if one.row.throughput else 0.0 for one in together]
    return (together[speeds.index(max(speeds))],)


def noisiest(
    explained: Explanation, rows: Sequence[ConfigurationSummary]
) -> tuple[ConfigurationSummary, Estimate]:
    """The row whose speed has the widest interval, with that speed: the explained row itself, or
    what its speedup is against."""
    known = {row.configuration: row for row in rows if row.configuration}
    trial = explained.trial
    inputs = (trial, reference_of(known)(trial))
    speeds = [(row, row.throughput) for one in inputs if (row := known.get(one)) and row.throughput]
    return max(speeds, key=lambda found: found[1].ends[1] / found[1].ends[0])


def slowest_rank(records: Sequence[TrialRecord]) -> SlowestRank | None:
    """The rank that others wait for; None for one process, or without a window without
    synchronization.

    With synchronization all ranks take equally long, as the fast ones wait.
    """
    traits = IMPLEMENTATIONS[records[0].trial.implementation]
    if traits.communicates and any(steps_without_sync(record) is None for record in records):
        return None
    ranks = [rank for record in records if (rank := slowest_rank_of(record)) is not None]
    if not ranks:
        return None
    (rank, count), *_ = Counter(ranks).most_common(1)
    return SlowestRank(
        rank=rank,
        device=records[0].trial.place_of(rank),
        slowest_in=count,
        repetitions=len(ranks),
    )


def _notes(row: ConfigurationSummary, trial: TrialSpec, factors: Factors) -> Iterator[str]:
    """Reasons why parts share a factor or have none, with the remedy; repetitions left out."""
    if IDEAL in factors.missing:
        batch = f" at batch {trial.batch_size}" if trial.batch_size else ""
        yield (
            f"{row.label}: its factors give no efficiency, because `single`{batch} has no "
            "completed repetition in common with it"
        )
    for merged in (found.parts for found in factors.factors if len(found.parts) > 1):
        reasons = dict.fromkeys(_not_measured(trial, PARTS.index(part)) for part in merged[1:])
        listed = f"{', '.join(merged[:-1])} and {merged[-1]}"
        yield f"{listed} cannot be separated: {'; '.join(reasons)}"
    if len(factors.repetitions) < row.repetitions:
        yield (
            f"{row.label}: factors over {len(factors.repetitions)} of "
            f"{units.counted(row.repetitions, 'repetition')}; in the others something that it is "
            "compared with did not complete"
        )


def _not_measured(trial: TrialSpec, stage: int) -> str:
    if trial.workload.script and stage in (SHARDED, CONTENDED):
        return "the script does not run on one rank alone"
    if trial.workload.script:
        return "the script has no DistributedDataParallel whose averaging could be left out"
    if stage == SHARDED:
        sizes = ",".join(str(size) for size in sorted(set(trial.replica_batch_sizes)))
        return f"no `single` at batch {sizes}; add {sizes} to --batch-sizes"
    if stage == CONTENDED:
        return "no `independent` rows; add independent to --implementations"
    if trial.process_count == 1:
        return f"{trial.implementation} drives all replicas from one process, which has one clock"
    return f"{trial.implementation} has no window without synchronization"

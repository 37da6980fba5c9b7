"""Explains the rows of a sweep: where each loses time, which rank is slow, and what to try."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from dpbench import units
from dpbench.analysis.diagnosis.advice import advise
from dpbench.analysis.diagnosis.explanation import Explanation, SlowestRank
from dpbench.analysis.diagnosis.factors import (
    CONTENDED,
    IDEAL,
    PARTS,
    SHARDED,
    Factors,
    References,
    factor,
)
from dpbench.analysis.diagnosis.phases import step_phases
from dpbench.analysis.diagnosis.script import symptoms
from dpbench.analysis.row import Row
from dpbench.analysis.steps import slow_steps
from dpbench.analysis.throughput import slowest_rank, steps_without_sync
from dpbench.records.trial import TrialRecord
from dpbench.specs import TrialSpec
from dpbench.specs.traits import IMPLEMENTATIONS


def explain_rows(rows: Sequence[Row]) -> tuple[Explanation, ...]:
    """Explain every row of a sweep that has a speed, except `single` and one `independent` copy,
    which equals it; `rows` include those two, as references."""
    references = References([record for row in rows for record in row.records])
    explained = []
    for row in rows:
        if row.trial is None or not row.records:
            continue
        if row.group_size == 1 and not IMPLEMENTATIONS[row.implementation].communicates:
            continue
        factors = factor(row.records, references)
        explained.append(
            Explanation(
                row=row,
                trial=row.trial,
                factors=factors,
                slowest_rank=slowest_of(row.records),
                phases=step_phases(row.records),
                slow_steps=slow_steps(row.records, factors.slow_first_steps),
                notes=tuple(_notes(row, row.trial, factors)),
                symptoms=symptoms(row.records, factors),
            )
        )
    return tuple(replace(one, advice=advise(one, explained)) for one in explained)


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


def _notes(row: Row, trial: TrialSpec, factors: Factors) -> Iterator[str]:
    """Reasons why parts share a factor or have none, with the remedy; repetitions left out."""
    if IDEAL in factors.missing:
        batch = f" at batch {trial.batch_size}" if trial.batch_size else ""
        yield (
            f"{row.label}: its factors give no efficiency, because `single`{batch} has no "
            "completed repetition in common with it"
        )
    for merged in (found.parts for found in factors.factors if len(found.parts) > 1):
        reasons = dict.fromkeys(
            _not_measured(trial, PARTS.index(part), factors) for part in merged[1:]
        )
        listed = f"{', '.join(merged[:-1])} and {merged[-1]}"
        yield f"{listed} cannot be separated: {'; '.join(reasons)}"
    if len(factors.repetitions) < row.repetitions:
        yield (
            f"{row.label}: factors over {len(factors.repetitions)} of "
            f"{units.counted(row.repetitions, 'repetition')}; in the others something that it is "
            "compared with did not complete"
        )


def _not_measured(trial: TrialSpec, stage: int, factors: Factors) -> str:
    """Why a stage of a step was not measured, and how it can be."""
    runs_alone = SHARDED not in factors.missing
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

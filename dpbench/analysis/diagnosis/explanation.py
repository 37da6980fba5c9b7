"""Why a configuration is as fast as it is: where it loses time, which rank is slow, what could not
be separated, and what to try."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import median

import numpy as np

from dpbench import units
from dpbench.analysis.diagnosis.causes import SEVERAL, Cause, forward_passes, script_causes
from dpbench.analysis.diagnosis.factors import (
    CONTENDED,
    IDEAL,
    PARTS,
    SHARDED,
    Breakdown,
    Factor,
    Part,
    break_down,
    is_large_loss,
    trials_by_key,
)
from dpbench.analysis.diagnosis.phases import StepPhases, step_phases
from dpbench.analysis.estimate import Estimate, mean
from dpbench.analysis.noise import WAS_BUSY, is_disturbed, repetitions_to_state
from dpbench.analysis.rows import Row
from dpbench.analysis.throughput import rank_step_seconds, slow_steps, steps_without_sync
from dpbench.messages import option_words
from dpbench.records.trial import TrialRecord
from dpbench.specs import TrialSpec
from dpbench.specs.traits import IMPLEMENTATIONS

HALF = 0.5
"""Share of a loss from which slow steps are its cause."""
SLOW_CLOCK = 0.95
"""Share of the other ranks' clock up to which a GPU's own is the cause that they wait."""
ORDINARY_WAITING = 0.1
"""Share of a script's step up to which waiting, unless for one slow rank, is no symptom:
ranks without a fault have 4 to 6 % of steps of 20 ms on shared cores."""
ACCUMULATE_TIMES = 4
SCRIPT_ON_SHM = "--backends gloo,shm"
"""The option of `dpbench sweep` that replaces the backend of a script."""
ONE_CLOCK: tuple[Part, ...] = ("wrapper", "waiting")
"""Parts that a process that drives all replicas cannot separate, as it has only one clock."""
HIDDEN_BY_PAUSES: set[Part] = {"contention", "wrapper", "waiting"}
"""Parts that slow steps enlarge, whatever causes them."""
CONTAINED: dict[str, Part] = {"reductions": "communication", "sync batch norm": "wrapper"}
"""Causes that say more of a loss than its factor does."""
TextAndRemedy = tuple[str, str]


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


@dataclass(frozen=True, kw_only=True)  # without slots, for cached values
class Explanation:
    """One configuration: its row of the table, its factors, and what else was found."""

    row: Row
    configuration: TrialSpec
    breakdown: Breakdown
    others: Mapping[TrialSpec, Breakdown]
    """The breakdowns of all explained configurations of the sweep."""

    @cached_property
    def slowest_rank(self) -> SlowestRank | None:
        return slowest_of(self.row.records)

    @cached_property
    def phases(self) -> StepPhases | None:
        return step_phases(self.row.records)

    @property
    def undetermined(self) -> tuple[str, ...]:
        """Why parts share a factor or have none, and what to measure; repetitions left out."""
        notes = []
        if IDEAL in self.breakdown.missing:
            batch = f" at batch {self.row.batch_size}" if self.row.batch_size else ""
            notes.append(
                f"{self.row.label}: its factors give no efficiency, because `single`{batch} has no "
                "completed repetition in common with it"
            )
        for factor in self.breakdown.factors:
            stages = [PARTS.index(part) for part in factor.parts[1:]]
            reasons = dict.fromkeys(self._not_measured(stage) for stage in stages)
            if reasons:
                listed = f"{', '.join(factor.parts[:-1])} and {factor.parts[-1]}"
                notes.append(f"{listed} cannot be separated: {'; '.join(reasons)}")
        return tuple(notes)

    def _not_measured(self, stage: int) -> str:
        """Why a stage of a step was not measured, and how it can be."""
        configuration, name = self.configuration, self.configuration.implementation
        runs_alone = SHARDED not in self.breakdown.missing
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

    @property
    def communicates(self) -> bool:
        """Whether its ranks wait for each other, unlike independent copies."""
        return self.configuration.traits.communicates

    @property
    def repetitions_needed(self) -> int | None:
        """Number of repetitions, as noisy as these, that would give an efficiency; None if
        MAX_ADVISED would not, or if other processes would disturb them, too."""
        if any(map(is_disturbed, (*self.row.records, *self.row.reference))):
            return None
        return repetitions_to_state(self.row.noisy_estimates)

    @property
    def causes(self) -> tuple[Cause, ...]:
        """What makes it slow or wrong, and what to try: first what is wrong, then the largest loss.

        A factor is blamed if the whole interval of its share lies above 0, or that of its ratio
        below 1, and it costs 5 % of the step or more, even where the speed is too noisy to state;
        each is tested singly, without a correction for their number. With a single repetition none
        is blamed, as there is no interval, and none with slow first steps, which are in all of
        them. What the sweep already tried is not advised. Of one replica in a sweep of several,
        only slow steps are named.
        """
        row, configuration = self.row, self.configuration
        pauses = _pauses(self)
        if row.group_size == 1 and any(other.group_size > 1 for other in self.others):
            return pauses
        causes = [*pauses]
        layers = max(rank.sync_batch_norms for record in row.records for rank in record.ranks)
        if layers and row.group_size > 1 and self.communicates:
            share, within = self.breakdown.around("wrapper")
            text = (
                f"SyncBatchNorm ({units.counted(layers, 'layer')}), which communicates in every "
                f"forward pass, with and without averaging of gradients{within}"
            )
            remedy = "BatchNorm with a larger batch per rank, or GroupNorm"
            causes.append(
                Cause(kind="sync batch norm", share=share, is_bound=True, text=text, remedy=remedy)
            )
        first = row.warm_up
        is_warm = first is None or not is_large_loss(first.share)
        if first is not None and not is_warm:
            text = f"slow first steps of the window (the first {first.steps})"
            remedy = f"try {option_words('warmup', configuration.warmup_steps + first.steps)}"
            causes.append(Cause(kind="warm-up", share=first.share, text=text, remedy=remedy))
        if configuration.workload.script and self.communicates:
            causes += script_causes(
                row.records,
                self.breakdown,
                is_warm=is_warm,
                measured_workers=[
                    other.data_workers
                    for other in self.others
                    if other.data_workers is not None
                    if replace(other, data_workers=configuration.data_workers) == configuration
                ],
            )
        contained = {CONTAINED.get(cause.kind) for cause in causes}
        for factor in self.breakdown.factors if is_warm else ():
            paused = sum(cause.share.value for cause in pauses if cause.share)
            is_hidden = HIDDEN_BY_PAUSES.issuperset(factor.parts)
            if is_hidden and paused >= HALF * factor.share.value > 0:
                continue  # the larger part of it are slow steps
            if "waiting" in factor.parts and configuration.workload.script:
                slowest = self.slowest_rank
                is_named = slowest is not None and slowest.is_slow
                if factor.share.value < ORDINARY_WAITING and not is_named:
                    continue
            if factor.is_large_loss and contained.isdisjoint(factor.parts):
                causes.append(_of_factor(factor, self))
        if self.phases is not None and is_large_loss(self.phases.data_share):
            # A loader that is as slow in `single` costs no efficiency, and still costs time.
            tries = [option_words("data_workers", 2 * (configuration.data_workers or 1))]
            if not (configuration.data_workers or configuration.prefetch):
                tries = [option_words("prefetch", 2), *tries]
            text = "loading data, on every rank"
            remedy = f"try {' '.join(tries)}, or a faster source of samples"
            share = self.phases.data_share
            causes.append(Cause(kind="data", share=share, text=text, remedy=remedy))
        return tuple(sorted(causes, key=lambda cause: cause.order))


def not_too_noisy(explanations: Sequence[Explanation]) -> tuple[Explanation, ...]:
    """Those that are not too noisy to show."""
    return tuple(explanation for explanation in explanations if not explanation.row.noisy_estimates)


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


def explain_rows(rows: Sequence[Row]) -> tuple[Explanation, ...]:
    """Explain all rows of a sweep that have a speed, except `single` and one `independent` copy,
    which equals it; `rows` include those two, as references."""
    references = trials_by_key(record for row in rows for record in row.records)
    breakdowns = {
        row.configuration: break_down(row.records, references)
        for row in rows
        if row.configuration and row.records
        if row.group_size > 1 or IMPLEMENTATIONS[row.implementation].communicates
    }
    return tuple(
        Explanation(
            row=row,
            configuration=row.configuration,
            breakdown=breakdowns[row.configuration],
            others=breakdowns,
        )
        for row in rows
        if row.configuration in breakdowns
    )


def slowest_of(records: Sequence[TrialRecord]) -> SlowestRank | None:
    """The rank that others wait for; None for one process, or without a window without
    synchronization.

    With synchronization all ranks take equally long, as the fast ones wait.
    """
    traits = records[0].trial.traits
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


def _pauses(explanation: Explanation) -> tuple[Cause, ...]:
    """Steps that take far longer than the others, if they cost much."""
    first = explanation.row.warm_up
    slow = slow_steps(explanation.row.records, first.steps if first else 0)
    if slow is None or not is_large_loss(slow.share):
        return ()
    remedy = (
        "look for what runs only now and then, such as garbage collection, logging or a branch of "
        "the model (dpbench.load(DIR).steps has all steps)"
    )
    if explanation.row.is_disturbed:
        remedy = WAS_BUSY
    longer = units.seconds(float(f"{slow.extra_seconds:.2g}"))
    text = f"rare slow steps (1 in {slow.interval:.0f}, {longer} longer than the others)"
    return (Cause(kind="slow steps", share=slow.share, text=text, remedy=remedy),)


def _of_factor(factor: Factor, explanation: Explanation) -> Cause:
    part: str = factor.parts[0]
    configuration = explanation.configuration
    if factor.parts == ONE_CLOCK:
        # One process has one clock: it hides the work of driving all replicas.
        part = "wrapper"
    elif len(factor.parts) > 1:
        part = "not separated"
    match part:
        case "granularity":
            text = "granularity, as a small shard takes longer per sample"
            remedy = f"try a larger {option_words('batch_sizes')} or fewer replicas"
        case "contention":
            copies = configuration.group_size
            text = f"contention, as {copies} copies slow each other without communicating"
            remedy = "they share memory bandwidth or cores, whatever the implementation"
            if configuration.devices[0] != "cpu":
                remedy = "they share power, PCIe or the host's cores; try fewer replicas per host"
        case "wrapper":
            text, remedy = _wrapper(explanation)
        case "waiting":
            text, remedy = _waiting(explanation)
        case "communication":
            text, remedy = _communication(explanation)
        case _:
            text, remedy = " or ".join(factor.parts), "see below what separates them"
    option = SCRIPT_ON_SHM if part == "communication" and _may_try_shm(explanation) else ""
    return Cause(kind=part, share=factor.share, text=text, remedy=remedy, option=option)


def _wrapper(explanation: Explanation) -> TextAndRemedy:
    configuration = explanation.configuration
    traits = configuration.traits
    if configuration.workload.script:
        text = "what a rank does beside its own training (hooks, buckets, other collectives)"
        if forward_passes(explanation.row.records) >= SEVERAL:
            return text, "look for collectives of its own, such as a loss that is averaged to log"
        return text, "try a larger batch, or gradient accumulation with no_sync()"
    if traits.one_process and configuration.group_size > 1:
        text = "driving all replicas from one process, where they wait for each other"
        return text, "try ddp"
    alternative = f"{traits.alternative}, or " if traits.alternative else ""
    return (
        "the wrapper (hooks, buckets), a cost per step",
        f"try {alternative}a larger {option_words('batch_sizes')}, or {_accumulate(configuration)}",
    )


def _may_try_shm(explanation: Explanation) -> bool:
    """Whether a script's ranks, which share a host, use gloo, and the sweep has no row on shm."""
    configuration = explanation.configuration
    classes = {rank.group_class for record in explanation.row.records for rank in record.ranks}
    return (
        bool(configuration.workload.script)
        and configuration.devices[0] == "cpu"
        and classes == {"ProcessGroupGloo"}
        and replace(configuration, backend="shm") not in explanation.others
    )


def _accumulate(configuration: TrialSpec) -> str:
    return option_words("accumulate", configuration.accumulation_steps * ACCUMULATE_TIMES)


def _communication(explanation: Explanation) -> TextAndRemedy:
    """Advises a backend that is known to be faster here, or that may be and was not measured."""
    configuration = explanation.configuration
    traits = configuration.traits
    if configuration.workload.script:
        faster = "a faster backend"
        if _may_try_shm(explanation):
            faster = 'import dpbench.parallel and init_process_group("shm") instead of gloo'
        if forward_passes(explanation.row.records) >= SEVERAL:
            return "exposed communication", f"try {faster}"
        return (
            "exposed communication",
            f"try a larger batch, gradient accumulation with no_sync(), or {faster}",
        )
    if traits.one_process:
        return "gathering gradients in one process", f"try ddp, or {_accumulate(configuration)}"
    if traits.averages_parameters:
        return (
            f"exposed averaging of parameters on {configuration.backend}",
            f"try {option_words('sync_every', configuration.sync_every * ACCUMULATE_TIMES)}",
        )
    if configuration.devices[0] == "cpu":
        name = "shm" if configuration.backend == "gloo" and configuration.node_count == 1 else ""
    else:
        name = "nccl" if configuration.backend in ("gloo", "shm") else ""
    same = replace(configuration, backend=name)
    measured = explanation.others.get(same) if name else None
    words = f"{name} (same host), or " if name == "shm" else f"{name}, or " if name else ""
    if measured is not None:
        # Whole steps differ less clearly: they include all disturbances that backends share.
        mine = explanation.breakdown.of("communication")
        theirs = measured.of("communication")
        is_faster = mine and theirs and theirs.value.ends[0] > mine.value.ends[1]
        words = f"{name}, which hides more of it in this sweep, or " if is_faster else ""
    return (
        f"exposed communication on {configuration.backend}",
        f"try {words}{_accumulate(configuration)}",
    )


def _waiting(explanation: Explanation) -> TextAndRemedy:
    slowest = explanation.slowest_rank
    if not explanation.communicates:
        return (
            "copies that are slower than the typical one",
            "look for other work on their devices",
        )
    if slowest is None or not slowest.is_slow:
        return (
            "waiting for the rank that is slowest in each step, not always the same one",
            "look for other work on the devices (dpbench.load(DIR).steps has all steps), pin ranks "
            "to cores, or make samples equally long",
        )
    text = (
        f"waiting for rank {slowest.rank} ({slowest.device}), the slowest in all "
        f"{slowest.repetitions} repetitions"
    )
    ranks = [rank for record in explanation.row.records for rank in record.ranks]
    slow = [state for rank in ranks if rank.rank == slowest.rank for state in rank.timed.gpu]
    others = [state for rank in ranks if rank.rank != slowest.rank for state in rank.timed.gpu]
    if slow and others:
        mine, theirs = (median(state.sm_clock_mhz for state in some) for some in (slow, others))
        if mine <= SLOW_CLOCK * theirs:
            reasons = dict.fromkeys(reason for state in slow for reason in state.slowdowns)
            why = f" ({', '.join(reasons)})" if reasons else ""
            return (
                f"{text}, with an SM clock of {mine:,.0f} MHz against {theirs:,.0f}{why}",
                "look at its cooling and its power limit (nvidia-smi -q)",
            )
    return text, "compare its device, clock, samples and data loading, and what else runs there"

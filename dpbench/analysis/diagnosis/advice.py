"""Advice where a step loses its time: only for large losses, never for noise or for what was done
already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from dpbench import units
from dpbench.analysis.diagnosis.explanation import Explanation, SlowestRank, Stragglers
from dpbench.analysis.diagnosis.factors import Factor, Part
from dpbench.analysis.estimate import Estimate
from dpbench.records.environment import Environment
from dpbench.specs import TrialSpec
from dpbench.specs.traits import IMPLEMENTATIONS

LARGE = 0.05
"""Smallest share of a step whose loss is worth advice."""
NOTHING_LARGE = (
    f"no loss is both large ({units.exact_percent(LARGE)} of a step) and beyond the noise"
)
ACCUMULATE_TIMES = 4
ONE_CLOCK: tuple[Part, ...] = ("wrapper", "balance", "stragglers")
"""Parts that a process that drives all replicas cannot separate, as it has only one clock."""
AdviceKind = Part | Literal["cannot tell apart"]
Words = tuple[str, str]
"""The loss, and its remedy."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Advice:
    """One large loss of one configuration, and what to do about it."""

    kind: AdviceKind
    factor: Factor
    loss: str
    """Name of the loss: "exposed communication on gloo"."""
    remedy: str
    """Advice on what to try, or why there is nothing to try: "try shm (same host)"."""

    @property
    def text(self) -> str:
        """Loss and remedy as text; equal if the same applies to several rows."""
        return f"{self.loss}: {self.remedy}"

    @property
    def share(self) -> Estimate:
        """The lost share of the step's seconds."""
        return self.factor.share


@dataclass(frozen=True, kw_only=True, slots=True)
class Surroundings:
    """Context of the advice: the sweep's other rows, the machine."""

    others: Sequence[Explanation] = ()
    cores: int | None = None


def advise(
    explanations: Sequence[Explanation],
    environments: Mapping[str, Environment] | None = None,
    others: Sequence[Explanation] = (),
) -> tuple[tuple[Advice, ...], ...]:
    """The advice on every explanation, the largest loss first; empty where nothing is large.

    A factor is blamed if its whole interval lies below 1 and it costs 5 % of the step or more; with
    a single repetition nothing is blamed, as there is no interval. `others` are all explanations of
    the sweep, so that nothing is advised that it already tried.
    """
    cores = {environment.cores for environment in (environments or {}).values()}
    around = Surroundings(
        others=others or explanations, cores=cores.pop() if len(cores) == 1 else None
    )
    return tuple(_advice(explanation, around) for explanation in explanations)


def _advice(explanation: Explanation, around: Surroundings) -> tuple[Advice, ...]:
    large = [
        (_kind(factor), factor)
        for factor in explanation.factors.factors
        if factor.is_loss and factor.share.value >= LARGE
    ]
    found = []
    for kind, factor in large:
        loss, remedy = _words(kind, factor, explanation, around)
        found.append(Advice(kind=kind, factor=factor, loss=loss, remedy=remedy))
    return tuple(sorted(found, key=lambda advice: -advice.share.value))


def _kind(factor: Factor) -> AdviceKind:
    if len(factor.parts) == 1:
        return factor.parts[0]
    # One process has one clock: it hides the work of driving all replicas.
    return "wrapper" if factor.parts == ONE_CLOCK else "cannot tell apart"


def _words(
    kind: AdviceKind, factor: Factor, explanation: Explanation, around: Surroundings
) -> Words:
    trial = explanation.trial
    if kind == "communication":
        return _communication(explanation, around)
    if kind == "contention":
        return _contention(trial, around.cores)
    if kind == "wrapper":
        return _wrapper(trial)
    if kind == "balance":
        return _balance(trial, explanation.slowest_rank, explanation.stragglers)
    if kind == "stragglers":
        return _stragglers(trial, explanation.stragglers)
    if kind == "granularity":
        return (
            "granularity, as a small shard takes longer per sample",
            "try a larger --batch-sizes or fewer replicas",
        )
    return " or ".join(factor.parts), "see below how to tell them apart"


def _communication(explanation: Explanation, around: Surroundings) -> Words:
    trial = explanation.trial
    accumulate = f"--accumulate {trial.accumulation_steps * ACCUMULATE_TIMES}"
    if IMPLEMENTATIONS[trial.implementation].one_process:
        return "gathering gradients in one process", f"try ddp, or {accumulate}"
    if IMPLEMENTATIONS[trial.implementation].averages_parameters:
        return (
            f"exposed averaging of parameters on {trial.backend}",
            f"try --sync-every {trial.sync_every * ACCUMULATE_TIMES}",
        )
    remedies = [_other_backend(explanation, around), accumulate]
    listed = ", or ".join(remedy for remedy in remedies if remedy)
    return f"exposed communication on {trial.backend}", f"try {listed}"


def _other_backend(explanation: Explanation, around: Surroundings) -> str | None:
    """A backend that is known to be faster here, or that may be faster and was not measured."""
    trial = explanation.trial
    on_cpu = trial.devices[0] == "cpu"
    name = {"gloo": "shm" if on_cpu else "nccl", "shm": None if on_cpu else "nccl"}.get(
        trial.backend
    )
    if name == "shm" and trial.nodes:
        name = None
    if name is None:
        return None
    wanted = replace(trial, backend=name)
    measured = next((other for other in around.others if other.trial == wanted), None)
    if measured is None:
        return f"{name} (same host)" if name == "shm" else name
    mine = explanation.factors.of("communication")
    theirs = measured.factors.of("communication")
    # Whole steps differ less clearly: they include all disturbances that backends share.
    if mine and theirs and _is_above(theirs.value, mine.value):
        return f"{name}, which hides more of it in this sweep"
    return None


def _is_above(one: Estimate, other: Estimate) -> bool:
    """Whether `one` lies above `other` with intervals that do not overlap."""
    return bool(one.interval and other.interval and one.interval[0] > other.interval[1])


def _contention(trial: TrialSpec, cores: int | None) -> Words:
    loss = f"contention, as {trial.group_size} copies slow each other without communicating"
    if trial.devices[0] != "cpu":
        return (
            loss,
            "power, PCIe or the host's cores are shared, and no data parallelism can be faster on "
            "them",
        )
    threads = trial.threads_per_replica
    share = trial.largest_share
    if cores is not None and share * threads > cores:
        each = cores // share
        fitting = f"--threads {each}" if each else f"at most {units.counted(cores, 'replica')}"
        shared = units.counted(cores, "core")
        return (
            f"contention, as {share * threads} threads share {shared}",
            f"try {fitting}",
        )
    fewer = f"; try --threads {threads // 2}" if threads > 1 else ""
    return (
        loss,
        "memory bandwidth or cores are shared, and no data parallelism can be faster here" + fewer,
    )


def _wrapper(trial: TrialSpec) -> Words:
    traits = IMPLEMENTATIONS[trial.implementation]
    if traits.one_process and trial.group_size > 1:
        return "driving all replicas from one process, where they wait for each other", "try ddp"
    alternative = f"{traits.alternative}, or " if traits.alternative else ""
    return (
        "the wrapper (hooks, buckets), a cost per step",
        f"try {alternative}a larger --batch-sizes, or --accumulate "
        f"{trial.accumulation_steps * ACCUMULATE_TIMES}",
    )


def _balance(trial: TrialSpec, slowest: SlowestRank | None, waited_for: Stragglers | None) -> Words:
    sizes = trial.replica_batch_sizes
    if slowest is None:
        return "waiting for the slowest rank", "look for what else runs on its device"
    name = f"rank {slowest.rank} ({slowest.device})"
    if not slowest.always:
        return (
            f"waiting for the slowest rank, which changes ({name} in {slowest.slowest_in} of "
            f"{slowest.repetitions} repetitions)",
            "other work on this machine rather than one slow device; free its cores or pin the "
            "ranks",
        )
    if trial.process_count > 1 and min(sizes) < sizes[slowest.rank]:
        return (
            f"waiting for {name}, whose shard is larger ({max(sizes)} samples, others "
            f"{min(sizes)})",
            f"try a batch that {trial.group_size} divides",
        )
    remedy = "compare its device, its clock and what else runs there with the others'"
    if waited_for and waited_for.worst and waited_for.rank == slowest.rank:
        remedy = _look_at(waited_for)
    return f"waiting for {name}, the slowest in all {slowest.repetitions} repetitions", remedy


def _stragglers(trial: TrialSpec, found: Stragglers | None) -> Words:
    if found is None:
        return "waiting for stragglers", "look for what slows single steps"
    name = f"rank {found.rank} ({trial.place_of(found.rank)})"
    if found.is_one_rank:
        who = f"{name}, slow in single steps"
    else:
        who = f"stragglers, another rank in each step ({name} most often)"
    share = units.percent(found.slowest_in)
    loss = f"waiting for {who}: slowest in {share} of {units.counted(found.steps, 'step')}"
    if found.worst:
        return f"{loss}; half of the waiting is in {len(found.worst)} of them", _look_at(found)
    where = "its device, its clock and what else runs there" if found.is_one_rank else "other work"
    return (
        loss,
        f"step times vary on their own; look for {where}, pin ranks to cores, or make samples "
        "equally long",
    )


def _look_at(found: Stragglers) -> str:
    """Steps that others wait for, by their numbers in exported files."""
    noun = "step" if len(found.worst) == 1 else "steps"
    listed = ", ".join(map(str, found.worst))
    return (
        f"look at what happens in {noun} {listed} of repetition {found.repetition}, without "
        "synchronization (other work, slow samples); dpbench report --level step lists all"
    )

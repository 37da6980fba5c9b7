"""What to try where a step loses its time: only for large losses, never for noise or for what was
done already."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, median, median_low

from dpbench import units
from dpbench.analysis.diagnosis.explanation import (
    Advice,
    AdviceKind,
    Explanation,
    explanations_of,
)
from dpbench.analysis.diagnosis.factors import LARGE, Factor, Part, is_large_loss
from dpbench.analysis.diagnosis.phases import data_seconds
from dpbench.analysis.diagnosis.script import script_words
from dpbench.analysis.row import Row
from dpbench.specs import TrialSpec
from dpbench.specs.traits import IMPLEMENTATIONS

NOTHING_LARGE = f"no loss is both large ({units.percent(LARGE)} of a step) and beyond the noise"
HALF = 0.5
"""Share of a loss from which slow data loading, or slow steps, are its cause."""
SLOW_CLOCK = 0.95
"""Share of the other ranks' clock up to which a GPU's own is the cause that they wait."""
ACCUMULATE_TIMES = 4
ONE_CLOCK: tuple[Part, ...] = ("wrapper", "waiting")
"""Parts that a process that drives all replicas cannot separate, as it has only one clock."""
HIDDEN_BY_PAUSES: set[Part] = {"contention", "wrapper", "waiting"}
"""Parts that slow steps enlarge, whatever causes them."""
LossAndRemedy = tuple[str, str]
"""The loss, and its remedy."""


def explain_rows(rows: Sequence[Row]) -> tuple[Explanation, ...]:
    """Explain the rows of a sweep, with advice; see `explanations_of`."""
    found = explanations_of(rows)
    return tuple(replace(one, advice=advise(one, found)) for one in found)


def advise(one: Explanation, others: Sequence[Explanation]) -> tuple[Advice, ...]:
    """The advice on one explanation of a sweep, the largest loss first; () if nothing is large.

    A factor is blamed if the whole interval of its share lies above 0 and it costs 5 % of the step
    or more, even where the speed is too noisy to state; with a single repetition nothing is blamed,
    as there is no interval. What the sweep already tried is not advised. Of one replica in a sweep
    of several, only slow steps are named.
    """
    pauses = _pauses(one)
    if one.trial.group_size == 1 and any(other.trial.group_size > 1 for other in others):
        return () if pauses is None else (pauses,)
    lines = []
    for factor in one.breakdown.factors:
        is_hidden = HIDDEN_BY_PAUSES.issuperset(factor.parts)
        if is_hidden and pauses and pauses.share.value >= HALF * factor.share.value:
            continue  # the larger part of it are slow steps
        if is_large_loss(factor.share):
            lines.append(_advice(factor, one, others))
    share = one.phases and one.phases.data_share
    if share and is_large_loss(share) and all(line.kind != "data" for line in lines):
        # A loader that is as slow in `single` costs no efficiency, and still costs time.
        loss = "loading data, on every rank"
        lines.append(Advice(kind="data", share=share, loss=loss, remedy=_faster_loading(one.trial)))
    if pauses is not None:
        lines.append(pauses)
    return tuple(sorted(lines, key=lambda line: -line.share.value))


def _pauses(one: Explanation) -> Advice | None:
    """Advice on steps that take far longer than the others, if they cost much."""
    slow = one.slow_steps
    if slow is None or not is_large_loss(slow.share):
        return None
    remedy = (
        "look for what runs only now and then, such as garbage collection, logging or a branch of "
        "the model (dpbench.load(DIR).steps has all steps)"
    )
    if one.row.is_disturbed:
        remedy = "other processes ran meanwhile: free the machine and measure again"
    return Advice(kind="slow steps", share=slow.share, loss=slow.text, remedy=remedy)


def _advice(factor: Factor, explained: Explanation, others: Sequence[Explanation]) -> Advice:
    kind: AdviceKind = factor.parts[0]
    if factor.parts == ONE_CLOCK:
        # One process has one clock: it hides the work of driving all replicas.
        kind = "wrapper"
    elif len(factor.parts) > 1:
        kind = "not separated"
    elif kind == "waiting" and explained.slowest_rank is not None:
        # Seconds of a step by which data loading on the slowest rank exceeds the typical rank's.
        loading = [ranks for one in explained.row.records if (ranks := data_seconds(one))]
        slower = fmean([max(ranks) - median_low(ranks) for ranks in loading] or [0.0])
        lost = factor.share.value * explained.breakdown.step_seconds.value
        kind = "data" if slower >= HALF * lost else "waiting"
    loss, remedy = _words(kind, factor.parts, explained, others)
    return Advice(kind=kind, share=factor.share, loss=loss, remedy=remedy)


def _words(
    kind: AdviceKind,
    parts: Sequence[Part],
    explained: Explanation,
    others: Sequence[Explanation],
) -> LossAndRemedy:
    trial, slowest = explained.trial, explained.slowest_rank
    traits = IMPLEMENTATIONS[trial.implementation]
    accumulate = f"--accumulate {trial.accumulation_steps * ACCUMULATE_TIMES}"
    if kind == "data" and slowest is not None:
        return f"loading data on rank {slowest.rank} ({slowest.device})", _faster_loading(trial)
    if kind == "waiting":
        return _waiting(explained)
    if trial.workload.script and kind in ("communication", "wrapper"):
        return script_words(kind)
    if kind == "communication":
        return _communication(explained, others, accumulate)
    if kind == "contention":
        loss = f"contention, as {trial.group_size} copies slow each other without communicating"
        if trial.devices[0] == "cpu":
            return loss, "they share memory bandwidth or cores, whatever the implementation"
        return loss, "they share power, PCIe or the host's cores; try fewer replicas per host"
    if kind == "warm-up":
        steps = explained.breakdown.slow_first_steps
        loss = f"slow first steps of the window (the first {steps})"
        return loss, f"try --warmup {trial.warmup_steps + steps}"
    if kind == "wrapper" and traits.one_process and trial.group_size > 1:
        return "driving all replicas from one process, where they wait for each other", "try ddp"
    if kind == "wrapper":
        alternative = f"{traits.alternative}, or " if traits.alternative else ""
        remedy = f"try {alternative}a larger --batch-sizes, or {accumulate}"
        return "the wrapper (hooks, buckets), a cost per step", remedy
    if kind == "granularity":
        loss = "granularity, as a small shard takes longer per sample"
        return loss, "try a larger --batch-sizes or fewer replicas"
    return " or ".join(parts), "see below what separates them"


def _faster_loading(trial: TrialSpec) -> str:
    """The next step of loading ahead that the trial has not taken."""
    if trial.data_workers:
        tries = f"--data-workers {2 * trial.data_workers}"
    elif trial.prefetch:
        tries = "--data-workers 2"
    else:
        tries = "--prefetch 2 --data-workers 2"
    return f"try {tries}, or a faster source of samples"


def _communication(
    explained: Explanation, others: Sequence[Explanation], accumulate: str
) -> LossAndRemedy:
    """Advises a backend that is known to be faster here, or that may be and was not measured."""
    trial = explained.trial
    traits = IMPLEMENTATIONS[trial.implementation]
    if traits.one_process:
        return "gathering gradients in one process", f"try ddp, or {accumulate}"
    if traits.averages_parameters:
        return (
            f"exposed averaging of parameters on {trial.backend}",
            f"try --sync-every {trial.sync_every * ACCUMULATE_TIMES}",
        )
    if trial.devices[0] == "cpu":
        name = "shm" if trial.backend == "gloo" and not trial.nodes else ""
    else:
        name = "nccl" if trial.backend in ("gloo", "shm") else ""
    same = replace(trial, backend=name)
    measured = next((other for other in others if other.trial == same), None) if name else None
    words = f"{name} (same host), or " if name == "shm" else f"{name}, or " if name else ""
    if measured is not None:
        # Whole steps differ less clearly: they include all disturbances that backends share.
        mine = explained.breakdown.of("communication")
        theirs = measured.breakdown.of("communication")
        is_faster = mine and theirs and theirs.value.ends[0] > mine.value.ends[1]
        words = f"{name}, which hides more of it in this sweep, or " if is_faster else ""
    return f"exposed communication on {trial.backend}", f"try {words}{accumulate}"


def _slow_clock(explained: Explanation, rank: int) -> str:
    """The clock of this rank's GPU in words, if it is below the others'; else ""."""
    ranks = [one for record in explained.row.records for one in record.ranks]
    own = [state for one in ranks if one.rank == rank for state in one.timed.gpu]
    others = [state for one in ranks if one.rank != rank for state in one.timed.gpu]
    if not own or not others:
        return ""
    mine, theirs = (median(state.sm_clock_mhz for state in some) for some in (own, others))
    if mine > SLOW_CLOCK * theirs:
        return ""
    reasons = dict.fromkeys(reason for state in own for reason in state.slowdowns)
    why = f" ({', '.join(reasons)})" if reasons else ""
    return f"with an SM clock of {mine:,.0f} MHz against {theirs:,.0f}{why}"


def _waiting(explained: Explanation) -> LossAndRemedy:
    slowest = explained.slowest_rank
    if not explained.communicates:
        return (
            "copies that are slower than the typical one",
            "look for other work on their devices",
        )
    if slowest is not None and slowest.always:
        loss = (
            f"waiting for rank {slowest.rank} ({slowest.device}), the slowest in all "
            f"{slowest.repetitions} repetitions"
        )
        if clock := _slow_clock(explained, slowest.rank):
            return f"{loss}, {clock}", "look at its cooling and its power limit (nvidia-smi -q)"
        return (
            loss,
            "compare its device, its clock, its share of the samples and what else runs there",
        )
    return (
        "waiting for the rank that is slowest in each step, not always the same one",
        "look for other work on the devices (dpbench.load(DIR).steps has all steps), pin "
        "ranks to cores, or make samples equally long",
    )

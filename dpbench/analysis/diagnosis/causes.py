"""What makes a configuration slow, and what to try: only large losses, never noise or what was
done already."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import median

from dpbench import units
from dpbench.analysis.diagnosis.explanation import Cause, Explanation, explanations_of
from dpbench.analysis.diagnosis.factors import Factor, Part, is_large_loss
from dpbench.analysis.diagnosis.script import SEVERAL, forward_passes, script_causes
from dpbench.analysis.rows import Row
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
ONE_CLOCK: tuple[Part, ...] = ("wrapper", "waiting")
"""Parts that a process that drives all replicas cannot separate, as it has only one clock."""
HIDDEN_BY_PAUSES: set[Part] = {"contention", "wrapper", "waiting"}
"""Parts that slow steps enlarge, whatever causes them."""
CONTAINED: dict[str, Part] = {"reductions": "communication", "sync batch norm": "wrapper"}
"""Causes that say more of a loss than its factor does."""
TextAndRemedy = tuple[str, str]


def explain_rows(rows: Sequence[Row]) -> tuple[Explanation, ...]:
    """Explain the rows of a sweep, with the causes of their losses; see `explanations_of`."""
    found = explanations_of(rows)
    return tuple(replace(one, causes=causes_of(one, found)) for one in found)


def causes_of(one: Explanation, others: Sequence[Explanation]) -> tuple[Cause, ...]:
    """The causes of one configuration's losses: first what is wrong, then the largest loss.

    A factor is blamed if the whole interval of its share lies above 0 and it costs 5 % of the step
    or more, even where the speed is too noisy to state; with a single repetition none is blamed, as
    there is no interval, and none with slow first steps, which are in all of them. What the sweep
    already tried is not advised. Of one replica in a sweep of
    several, only slow steps are named.
    """
    pauses = _pauses(one)
    if one.trial.group_size == 1 and any(other.trial.group_size > 1 for other in others):
        return pauses
    found = [*pauses, *_sync_batch_norm(one)]
    first = one.warm_up
    is_warm = first is None or not is_large_loss(first.share)
    if first is not None and not is_warm:
        text = f"slow first steps of the window (the first {first.steps})"
        remedy = f"try --warmup {one.trial.warmup_steps + first.steps}"
        found.append(Cause(kind="warm-up", share=first.share, text=text, remedy=remedy))
    if one.trial.workload.script and one.communicates:
        found += script_causes(one.row.records, one.breakdown, is_warm=is_warm)
    contained = {CONTAINED.get(cause.kind) for cause in found}
    for factor in one.breakdown.factors if is_warm else ():
        paused = sum(cause.share.value for cause in pauses if cause.share)
        if HIDDEN_BY_PAUSES.issuperset(factor.parts) and paused >= HALF * factor.share.value > 0:
            continue  # the larger part of it are slow steps
        if "waiting" in factor.parts and one.trial.workload.script:
            is_named = one.slowest_rank is not None and one.slowest_rank.is_slow
            if factor.share.value < ORDINARY_WAITING and not is_named:
                continue
        if is_large_loss(factor.share) and contained.isdisjoint(factor.parts):
            found.append(_of_factor(factor, one, others))
    if one.phases is not None and is_large_loss(share := one.phases.data_share):
        # A loader that is as slow in `single` costs no efficiency, and still costs time.
        trial = one.trial
        tries = "" if trial.data_workers or trial.prefetch else "--prefetch 2 "
        tries += f"--data-workers {2 * (trial.data_workers or 1)}"
        text, remedy = "loading data, on every rank", f"try {tries}, or a faster source of samples"
        found.append(Cause(kind="data", share=share, text=text, remedy=remedy))
    return tuple(sorted(found, key=lambda cause: cause.order))


def _pauses(one: Explanation) -> tuple[Cause, ...]:
    """Steps that take far longer than the others, if they cost much."""
    slow = one.slow_steps
    if slow is None or not is_large_loss(slow.share):
        return ()
    remedy = (
        "look for what runs only now and then, such as garbage collection, logging or a branch of "
        "the model (dpbench.load(DIR).steps has all steps)"
    )
    if one.row.is_disturbed:
        remedy = "other processes ran meanwhile: free the machine and measure again"
    return (Cause(kind="slow steps", share=slow.share, text=slow.text, remedy=remedy),)


def _sync_batch_norm(one: Explanation) -> Iterator[Cause]:
    layers = max(rank.sync_batch_norms for record in one.row.records for rank in record.ranks)
    share, within = one.breakdown.around("wrapper")
    if layers and one.trial.group_size > 1 and one.communicates:
        yield Cause(
            kind="sync batch norm",
            share=share,
            is_bound=True,
            text=f"SyncBatchNorm ({units.counted(layers, 'layer')}), which communicates in every "
            f"forward pass, with and without averaging of gradients{within}",
            remedy="BatchNorm with a larger batch per rank, or GroupNorm",
        )


def _of_factor(factor: Factor, one: Explanation, others: Sequence[Explanation]) -> Cause:
    part: str = factor.parts[0]
    trial = one.trial
    if factor.parts == ONE_CLOCK:
        # One process has one clock: it hides the work of driving all replicas.
        part = "wrapper"
    elif len(factor.parts) > 1:
        part = "not separated"
    match part:
        case "granularity":
            text = "granularity, as a small shard takes longer per sample"
            remedy = "try a larger --batch-sizes or fewer replicas"
        case "contention":
            text = f"contention, as {trial.group_size} copies slow each other without communicating"
            remedy = "they share memory bandwidth or cores, whatever the implementation"
            if trial.devices[0] != "cpu":
                remedy = "they share power, PCIe or the host's cores; try fewer replicas per host"
        case "wrapper":
            text, remedy = _wrapper(one)
        case "waiting":
            text, remedy = _waiting(one)
        case "communication":
            text, remedy = _communication(one, others)
        case _:
            text, remedy = " or ".join(factor.parts), "see below what separates them"
    return Cause(kind=part, share=factor.share, text=text, remedy=remedy)


def _wrapper(one: Explanation) -> TextAndRemedy:
    trial = one.trial
    traits = IMPLEMENTATIONS[trial.implementation]
    if trial.workload.script:
        text = "what a rank does beside its own training (hooks, buckets, other collectives)"
        if forward_passes(one.row.records) >= SEVERAL:
            return text, "look for collectives of its own, such as a loss that is averaged to log"
        return text, "try a larger batch, or gradient accumulation with no_sync()"
    if traits.one_process and trial.group_size > 1:
        text = "driving all replicas from one process, where they wait for each other"
        return text, "try ddp"
    alternative = f"{traits.alternative}, or " if traits.alternative else ""
    return (
        "the wrapper (hooks, buckets), a cost per step",
        f"try {alternative}a larger --batch-sizes, or {_accumulate(trial)}",
    )


def _accumulate(trial: TrialSpec) -> str:
    return f"--accumulate {trial.accumulation_steps * ACCUMULATE_TIMES}"


def _communication(one: Explanation, others: Sequence[Explanation]) -> TextAndRemedy:
    """Advises a backend that is known to be faster here, or that may be and was not measured."""
    trial = one.trial
    traits = IMPLEMENTATIONS[trial.implementation]
    if trial.workload.script:
        if forward_passes(one.row.records) >= SEVERAL:
            return "exposed communication", "try a faster backend"
        return (
            "exposed communication",
            "try a larger batch, gradient accumulation with no_sync(), or a faster backend",
        )
    if traits.one_process:
        return "gathering gradients in one process", f"try ddp, or {_accumulate(trial)}"
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
        mine = one.breakdown.of("communication")
        theirs = measured.breakdown.of("communication")
        is_faster = mine and theirs and theirs.value.ends[0] > mine.value.ends[1]
        words = f"{name}, which hides more of it in this sweep, or " if is_faster else ""
    return f"exposed communication on {trial.backend}", f"try {words}{_accumulate(trial)}"


def _waiting(one: Explanation) -> TextAndRemedy:
    slowest = one.slowest_rank
    if not one.communicates:
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
    ranks = [rank for record in one.row.records for rank in record.ranks]
    own = [state for rank in ranks if rank.rank == slowest.rank for state in rank.timed.gpu]
    others = [state for rank in ranks if rank.rank != slowest.rank for state in rank.timed.gpu]
    if own and others:
        mine, theirs = (median(state.sm_clock_mhz for state in some) for some in (own, others))
        if mine <= SLOW_CLOCK * theirs:
            reasons = dict.fromkeys(reason for state in own for reason in state.slowdowns)
            why = f" ({', '.join(reasons)})" if reasons else ""
            return (
                f"{text}, with an SM clock of {mine:,.0f} MHz against {theirs:,.0f}{why}",
                "look at its cooling and its power limit (nvidia-smi -q)",
            )
    return text, "compare its device, clock, samples and data loading, and what else runs there"

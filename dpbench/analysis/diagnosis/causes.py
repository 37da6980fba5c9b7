"""What makes a configuration slow, and what to try: only large losses, never noise or what was
done already."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import fmean, median

from dpbench import units
from dpbench.analysis.diagnosis.explanation import Cause, Explanation, explanations_of
from dpbench.analysis.diagnosis.factors import Breakdown, Factor, Part, is_large_loss
from dpbench.analysis.estimate import mean
from dpbench.analysis.noise import WAS_BUSY
from dpbench.analysis.rows import Row
from dpbench.analysis.throughput import after_first_segment, mean_step_seconds
from dpbench.messages import option_words
from dpbench.records.trial import ScriptFacts, TrialRecord
from dpbench.specs import Configuration
from dpbench.specs.traits import IMPLEMENTATIONS

HALF = 0.5
"""Share of a loss from which slow steps are its cause."""
SLOW_CLOCK = 0.95
"""Share of the other ranks' clock up to which a GPU's own is the cause that they wait."""
ORDINARY_WAITING = 0.1
"""Share of a script's step up to which waiting, unless for one slow rank, is no symptom:
ranks without a fault have 4 to 6 % of steps of 20 ms on shared cores."""
SLOW_INPUT = 0.1
"""Smallest share of a step at which the input pipeline is named: loading in the training process
costs a few percent of short steps in any script."""
SEVERAL = 1.5
"""Forward passes per optimizer step from which a script is said to take several."""
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
    explanations = explanations_of(rows)
    return tuple(replace(e, causes=causes_of(e, explanations)) for e in explanations)


def causes_of(explanation: Explanation, others: Sequence[Explanation]) -> tuple[Cause, ...]:
    """The causes of one configuration's losses: first what is wrong, then the largest loss.

    A factor is blamed if the whole interval of its share lies above 0 and it costs 5 % of the step
    or more, even where the speed is too noisy to state; with a single repetition none is blamed, as
    there is no interval, and none with slow first steps, which are in all of them. What the sweep
    already tried is not advised. Of one replica in a sweep of several, only slow steps are named.
    """
    row, configuration = explanation.row, explanation.configuration
    pauses = _pauses(explanation)
    if row.group_size == 1 and any(other.row.group_size > 1 for other in others):
        return pauses
    causes = [*pauses]
    layers = max(rank.sync_batch_norms for record in row.records for rank in record.ranks)
    if layers and row.group_size > 1 and explanation.communicates:
        share, within = explanation.breakdown.around("wrapper")
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
    if configuration.workload.script and explanation.communicates:
        causes += script_causes(row.records, explanation.breakdown, is_warm=is_warm)
    contained = {CONTAINED.get(cause.kind) for cause in causes}
    for factor in explanation.breakdown.factors if is_warm else ():
        paused = sum(cause.share.value for cause in pauses if cause.share)
        if HIDDEN_BY_PAUSES.issuperset(factor.parts) and paused >= HALF * factor.share.value > 0:
            continue  # the larger part of it are slow steps
        if "waiting" in factor.parts and configuration.workload.script:
            slowest = explanation.slowest_rank
            is_named = slowest is not None and slowest.is_slow
            if factor.share.value < ORDINARY_WAITING and not is_named:
                continue
        if is_large_loss(factor.share) and contained.isdisjoint(factor.parts):
            causes.append(_of_factor(factor, explanation, others))
    if explanation.phases is not None and is_large_loss(explanation.phases.data_share):
        # A loader that is as slow in `single` costs no efficiency, and still costs time.
        tries = [option_words("data_workers", 2 * (configuration.data_workers or 1))]
        if not (configuration.data_workers or configuration.prefetch):
            tries = [option_words("prefetch", 2), *tries]
        text = "loading data, on every rank"
        remedy = f"try {' '.join(tries)}, or a faster source of samples"
        share = explanation.phases.data_share
        causes.append(Cause(kind="data", share=share, text=text, remedy=remedy))
    return tuple(sorted(causes, key=lambda cause: cause.order))


def _pauses(explanation: Explanation) -> tuple[Cause, ...]:
    """Steps that take far longer than the others, if they cost much."""
    slow = explanation.slow_steps
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


def _of_factor(factor: Factor, explanation: Explanation, others: Sequence[Explanation]) -> Cause:
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
            text, remedy = _communication(explanation, others)
        case _:
            text, remedy = " or ".join(factor.parts), "see below what separates them"
    return Cause(kind=part, share=factor.share, text=text, remedy=remedy)


def _wrapper(explanation: Explanation) -> TextAndRemedy:
    configuration = explanation.configuration
    traits = IMPLEMENTATIONS[configuration.implementation]
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


def _accumulate(configuration: Configuration) -> str:
    return option_words("accumulate", configuration.accumulation_steps * ACCUMULATE_TIMES)


def _communication(explanation: Explanation, others: Sequence[Explanation]) -> TextAndRemedy:
    """Advises a backend that is known to be faster here, or that may be and was not measured."""
    configuration = explanation.configuration
    traits = IMPLEMENTATIONS[configuration.implementation]
    if configuration.workload.script:
        if forward_passes(explanation.row.records) >= SEVERAL:
            return "exposed communication", "try a faster backend"
        return (
            "exposed communication",
            "try a larger batch, gradient accumulation with no_sync(), or a faster backend",
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
    measured = (
        next((other for other in others if other.configuration == same), None) if name else None
    )
    words = f"{name} (same host), or " if name == "shm" else f"{name}, or " if name else ""
    if measured is not None:
        # Whole steps differ less clearly: they include all disturbances that backends share.
        mine = explanation.breakdown.of("communication")
        theirs = measured.breakdown.of("communication")
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


def script_causes(
    records: Sequence[TrialRecord], breakdown: Breakdown, *, is_warm: bool = True
) -> Iterator[Cause]:
    """What is wrong or slow in a script, from the usable repetitions of its ranks together; if they
    are not warm, nothing that its first steps could explain."""
    by_rank = [rank.script for record in records for rank in record.ranks if rank.script]
    yield from _wrong(by_rank)
    if is_warm:
        yield from _input_pipeline(records, by_rank[0])
    yield from _averaging(by_rank, breakdown)
    yield from _devices_and_threads(records[0])


def forward_passes(records: Sequence[TrialRecord]) -> float:
    """Forward passes of training in an optimizer step of a script: more than one if it accumulates
    gradients, none if it has no DistributedDataParallel."""
    by_rank = [rank.script for record in records for rank in record.ranks if rank.script]
    return fmean([facts.forwards / facts.steps for facts in by_rank] or [0.0])


def _wrong(by_rank: Sequence[ScriptFacts]) -> Iterator[Cause]:
    """Ranks that do not train one model, or all on the same samples."""
    name = next(filter(None, (facts.differing_parameter for facts in by_rank)), None)
    is_wrapped = any(facts.is_wrapped for facts in by_rank)
    if name is not None and not is_wrapped:
        yield Cause(
            kind="never synchronized",
            is_wrong=True,
            text=f"ranks train models of their own, as {name} differs after the warm-up, and no "
            "forward pass went through DistributedDataParallel",
            remedy="wrap the model, model = DistributedDataParallel(model), and call that",
        )
    elif name is not None:
        yield Cause(
            kind="replicas differ",
            is_wrong=True,
            text=f"replicas differ, as {name} is not the same on all ranks after the warm-up",
            remedy="change parameters before wrapping the model, on all ranks alike, and let all "
            "ranks load the same checkpoint",
        )
    if is_wrapped and any(facts.same_samples for facts in by_rank):
        yield Cause(
            kind="same samples",
            is_wrong=True,
            text="all ranks train on the same samples, as their batches are equal",
            remedy="DataLoader(…, sampler=DistributedSampler(dataset)), and "
            "sampler.set_epoch(epoch) before each epoch",
        )


def _input_pipeline(records: Sequence[TrialRecord], facts: ScriptFacts) -> Iterator[Cause]:
    """Steps as they are against those on a batch that stays in memory, from the second segment on.
    A slow input pipeline costs one rank as much, so it is a loss of time and not one of scaling."""
    as_is, kept = list[float](), list[float]()
    for record in records:
        cached = [rank.cached for rank in record.ranks if rank.cached]
        if len(cached) == len(record.ranks):
            timed = [rank.timed for rank in record.ranks]
            for steps, windows in ((as_is, timed), (kept, cached)):
                steps.append(max(map(mean_step_seconds, map(after_first_segment, windows))))
    if not kept:
        return
    share = mean([1 - a / b for a, b in zip(kept, as_is, strict=True)], unit="of the step")
    if share.value < SLOW_INPUT or not is_large_loss(share):
        return
    workers = facts.loader_workers or 0
    wanted = ["num_workers=…"]
    wanted += ["persistent_workers=True"] * (not facts.keeps_workers)
    wanted += ["pin_memory=True"] * (facts.gpu is not None and not facts.pins_memory)
    seconds = [units.seconds(float(f"{fmean(steps):.2g}")) for steps in (kept, as_is)]
    yield Cause(
        kind="input pipeline",
        share=share,
        text=f"the input pipeline ({seconds[0]} a step with the batch kept in memory, {seconds[1]} "
        "as it is)",
        remedy=f"try DataLoader({', '.join(wanted)}); this run had num_workers={workers}",
        option=f"--data-workers {workers},{max(2, 2 * workers)}",
    )


def _averaging(by_rank: Sequence[ScriptFacts], breakdown: Breakdown) -> Iterator[Cause]:
    """What DistributedDataParallel does more often than it has to: a part of communication."""
    share, within = breakdown.around("communication")
    per_step = fmean(facts.reducing_forwards / facts.steps for facts in by_rank)
    if per_step >= SEVERAL:
        yield Cause(
            kind="reductions",
            share=share and share.scaled(1 - 1 / per_step, unit="of the step"),
            is_bound=True,
            text=f"averaging gradients {per_step:.3g} times per optimizer step instead of "
            f"once{within}",
            remedy="with model.no_sync(): around forward and backward of all micro-steps but the "
            "last, which then averages them once",
        )
    if all(facts.finds_unused and not facts.has_unused for facts in by_rank):
        yield Cause(
            kind="find unused",
            share=share,
            is_bound=True,
            text="the search for unused parameters in every step, although all had a "
            f"gradient{within}",
            remedy="leave find_unused_parameters=True out of DistributedDataParallel(…)",
            option="--find-unused auto,off",
        )


def _devices_and_threads(record: TrialRecord) -> Iterator[Cause]:
    """Ranks that share one GPU where each was given its own; too many threads on a CPU, or one
    where cores are idle."""
    trial, ranks = record.trial, len(record.ranks)
    gpus = {rank.script.gpu for rank in record.ranks if rank.script and rank.script.gpu}
    wanted = len({*trial.devices})
    if gpus and len(gpus) < wanted:
        yield Cause(
            kind="shared gpu",
            text=f"the parameters of {ranks} ranks are on {units.counted(len(gpus), 'GPU')} "
            f"instead of {wanted}",
            remedy='torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) before the model is made',
        )
    cores = record.host_load.cores if record.host_load else 0
    threads = max(rank.threads or 0 for rank in record.ranks)
    per_rank = max(1, cores // ranks)
    given = option_words("threads", per_rank)
    if cores and threads > 1 and ranks * threads > cores:
        yield Cause(
            kind="threads",
            text=f"{ranks} ranks compute with {threads} threads each, on "
            f"{units.counted(cores, 'core')}",
            remedy=f"torch.set_num_threads({per_rank}), or no such call and {given}",
        )
    elif threads == 1 and trial.devices[0] == "cpu" and cores >= 2 * ranks:
        yield Cause(
            kind="threads",
            text=f"{ranks} ranks compute with one thread each, on {units.counted(cores, 'core')}",
            remedy=f"OMP_NUM_THREADS={per_rank}, or {given}",
        )

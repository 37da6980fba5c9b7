"""Causes of what is slow or wrong in training, each with what to do about it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Any

from dpbench import units
from dpbench.analysis.diagnosis.explanation import Explanation
from dpbench.analysis.diagnosis.factors import Breakdown, Factor, Part, is_large_loss
from dpbench.analysis.estimate import Estimate, mean
from dpbench.analysis.noise import WAS_BUSY
from dpbench.analysis.throughput import after_first_segment, slow_steps
from dpbench.messages import option_words
from dpbench.records.trial import ScriptFacts, TrialRecord

SLOW_INPUT = 0.1
"""Smallest share of a step at which the input pipeline is named: loading in the training process
costs a few percent of short steps in any script."""
SURE = 0.01
"""Smallest share of a step at the lower end of an interval from which a cause is sure."""
SEVERAL = 1.5
"""Forward passes per optimizer step from which a script is said to take several."""
HALF = 0.5
"""Share of a loss from which slow steps are its cause."""
SLOW_CLOCK = 0.95
"""Share of the other ranks' clock up to which a GPU's own is the cause that they wait."""
ORDINARY_WAITING = 0.1
"""Share of a script's step up to which waiting, unless for one slow rank, is no symptom:
ranks without a fault have 4 to 6 % of steps of 20 ms on shared cores."""
LESS_OFTEN = 4
"""How many times as rarely gradients, or parameters, are averaged by the settings to try."""
LEAVES = ", which leaves about a quarter of it"
SCRIPT_ACCUMULATES = f"gradient accumulation over {LESS_OFTEN} micro-steps with no_sync(){LEAVES}"
ONE_CLOCK: tuple[Part, ...] = ("wrapper", "waiting")
"""Parts that a process that drives all replicas cannot separate, as it has only one clock."""
HIDDEN_BY_PAUSES: set[Part] = {"contention", "wrapper", "waiting"}
"""Parts that slow steps enlarge, whatever causes them."""
CONTAINED: dict[str, Part] = {"reductions": "communication", "sync batch norm": "wrapper"}
"""Causes that say more of a loss than its factor does."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cause:
    """Something that makes a configuration slow, or wrong, and what to do about it."""

    kind: str
    text: str
    """What it is: "exposed communication on gloo"."""
    remedy: str
    """What to do and what that brings, or that nothing helps: "try --backends shm"."""
    share: Estimate | None = None
    """Share of the step's seconds; None if it was not measured."""
    is_bound: bool = False
    """Whether the share is that of a loss of which it is a part."""
    is_wrong: bool = False
    """Whether the training is wrong, at any speed."""
    option: str = ""
    """The option of `dpbench sweep` that measures what the remedy brings, if there is one."""

    @property
    def is_uncertain(self) -> bool:
        """Whether its own share may be next to nothing: 8 ± 8 % of the step."""
        return self.share is not None and not self.is_bound and self.share.ends[0] < SURE

    @property
    def order(self) -> tuple[bool, bool, float]:
        """What is wrong comes first, then the largest share, and behind those that are sure the
        uncertain ones; last what was not measured."""
        is_last = self.share is None or self.is_uncertain
        return not self.is_wrong, is_last, -self.share.value if self.share else 0.0


def causes_of(explanation: Explanation) -> tuple[Cause, ...]:
    """What makes a configuration slow or wrong, and what to try: first what is wrong, then the
    largest loss.

    A factor is blamed if the whole interval of its share lies above 0, or that of its ratio below
    1, and it costs 5 % of the step or more, even where the speed is too noisy to state; each is
    tested singly, without a correction for their number. With a single repetition none is blamed,
    as there is no interval, and none with slow first steps, which are in all of them. A setting
    that the sweep has is advised only if it loses less there. Of one replica in a sweep of several,
    only slow steps are named.
    """
    causes = [*_slow_steps(explanation)]
    is_alone = explanation.row.group_size == 1
    if is_alone and any(other.group_size > 1 for other in explanation.breakdowns):
        return tuple(causes)
    first_steps = [*_slow_first_steps(explanation)]
    is_warm = not first_steps
    causes += [*_sync_batch_norm(explanation), *first_steps]
    if explanation.configuration.workload.script and explanation.communicates:
        facts = _script_facts(explanation)
        causes += [*_wrong(facts), *_averaging(facts, explanation.breakdown)]
        causes += [*(_input_pipeline(explanation, facts[0]) if is_warm else ())]
        causes += _devices_and_threads(explanation.row.records[0])
    causes += [*(_factors(explanation, causes) if is_warm else ()), *_loading(explanation)]
    return tuple(sorted(causes, key=lambda cause: cause.order))


def _slow_steps(explanation: Explanation) -> Iterator[Cause]:
    """Steps that take far longer than the others, if they cost much."""
    first = explanation.row.warm_up
    slow = slow_steps(explanation.row.records, first.steps if first else 0)
    if slow is None or not is_large_loss(slow.share):
        return
    remedy = (
        "find what runs now and then, such as garbage collection (gc.freeze() after the warm-up), "
        "logging or a branch of the model; dpbench.load(DIR).steps has the time of each step"
    )
    longer = units.seconds(float(f"{slow.extra_seconds:.2g}"))
    yield Cause(
        kind="slow steps",
        share=slow.share,
        text=f"rare slow steps (1 in {slow.interval:.0f}, {longer} longer than the others)",
        remedy=WAS_BUSY if explanation.row.is_disturbed else remedy,
    )


def _slow_first_steps(explanation: Explanation) -> Iterator[Cause]:
    """Steps that the warm-up should have had."""
    first = explanation.row.warm_up
    if first is not None and is_large_loss(first.share):
        warmup = explanation.configuration.warmup_steps + first.steps
        yield Cause(
            kind="warm-up",
            share=first.share,
            text=f"slow first steps of the window (the first {first.steps})",
            remedy=f"measure with {option_words('warmup', warmup)}, which leaves them out",
        )


def _sync_batch_norm(explanation: Explanation) -> Iterator[Cause]:
    """Layers that communicate in steps without synchronization, too."""
    ranks = [rank for record in explanation.row.records for rank in record.ranks]
    layers = max(rank.sync_batch_norms for rank in ranks)
    if layers and explanation.trains_together:
        share, within = explanation.breakdown.around("wrapper")
        yield Cause(
            kind="sync batch norm",
            share=share,
            is_bound=True,
            text=f"SyncBatchNorm ({units.counted(layers, 'layer')}), which communicates in every "
            f"forward pass, with and without averaging of gradients{within}",
            remedy="use GroupNorm, or BatchNorm with a larger batch per rank: both stay local",
        )


def _loading(explanation: Explanation) -> Iterator[Cause]:
    """A loader that is as slow in `single` costs no efficiency, and still costs time."""
    if explanation.phases is None or not is_large_loss(explanation.phases.data_share):
        return
    configuration = explanation.configuration
    more: dict[str, Any] = {"data_workers": 2 * (configuration.data_workers or 1)}
    if not (configuration.data_workers or configuration.prefetch):
        more = {"prefetch": 2, **more}
    words = " ".join(option_words(name, value) for name, value in more.items())
    yield Cause(
        kind="data",
        share=explanation.phases.data_share,
        text="loading data, on every rank",
        remedy=_try(_setting(explanation, words, **more), "cheaper transforms"),
    )


def _factors(explanation: Explanation, known: Sequence[Cause]) -> Iterator[Cause]:
    """The large losses among the factors, except those that a known cause says more of."""
    paused = sum(one.share.value for one in known if one.kind == "slow steps" and one.share)
    contained = {CONTAINED.get(one.kind) for one in known}
    offset = [loss for loss, _ in explanation.offset_pairs]
    slowest = explanation.slowest_rank
    has_slow_rank = slowest is not None and slowest.is_slow
    ordinary = ORDINARY_WAITING if explanation.configuration.workload.script else 0.0
    for factor in explanation.breakdown.factors:
        is_hidden = HIDDEN_BY_PAUSES.issuperset(factor.parts)
        if is_hidden and paused >= HALF * factor.share.value > 0:
            continue  # the larger part of it are slow steps
        if "waiting" in factor.parts and factor.share.value < ordinary and not has_slow_rank:
            continue
        if factor in offset:
            continue
        if factor.is_large_loss and contained.isdisjoint(factor.parts):
            yield _of_factor(factor, explanation)


def _of_factor(factor: Factor, explanation: Explanation) -> Cause:
    configuration, option = explanation.configuration, ""
    # One process has one clock: it hides the work of driving all replicas.
    is_single = len(factor.parts) == 1 or factor.parts == ONE_CLOCK
    kind: str = factor.parts[0] if is_single else "not separated"
    match kind:
        case "granularity":
            text = "granularity, as a small shard takes longer per sample"
            remedy = f"try a larger {option_words('batch_sizes')} or fewer replicas"
        case "contention":
            copies = configuration.group_size
            text = f"contention, as {copies} copies slow each other without communicating"
            remedy = "no setting removes it, as they share cores and memory bandwidth"
            if configuration.devices[0] != "cpu":
                remedy = "try fewer replicas per host, as they share power, PCIe and its cores"
        case "wrapper":
            text, remedy = _wrapper(explanation)
        case "waiting":
            text, remedy = _waiting(explanation)
        case "communication":
            text, remedy, option = _communication(explanation)
        case _:
            text, remedy = " or ".join(factor.parts), "measure what separates them, see below"
    return Cause(kind=kind, share=factor.share, text=text, remedy=remedy, option=option)


def _wrapper(explanation: Explanation) -> tuple[str, str]:
    """What it is, and its remedy."""
    configuration = explanation.configuration
    traits = configuration.traits
    if configuration.workload.script:
        text = "what a rank does beside its own training (hooks, buckets, other collectives)"
        if _forward_passes(explanation) >= SEVERAL:
            return text, "remove collectives of its own, such as a loss that is averaged to log"
        return text, _try(SCRIPT_ACCUMULATES, "a larger batch: it is a cost per step")
    if traits.one_process and configuration.group_size > 1:
        text = "driving all replicas from one process, where they wait for each other"
        return text, _try("ddp, which has a process for each replica")
    alternative = traits.alternative or ""
    return "the wrapper's own work, a cost per step", _try(
        _setting(explanation, alternative, "wrapper", implementation=alternative),
        _averaging_less_often(explanation, "wrapper"),
        f"a larger {option_words('batch_sizes')}",
    )


def _communication(explanation: Explanation) -> tuple[str, str, str]:
    """What it is, its remedy, and the option of `dpbench sweep` that measures what that brings to a
    script."""
    configuration, name = explanation.configuration, _faster_backend(explanation)
    traits = configuration.traits
    if configuration.workload.script:
        imports = "import dpbench.parallel and " if name == "shm" else ""
        words = f'{imports}init_process_group("{name}")' if name else ""
        backend = _setting(explanation, words, "communication", backend=name)
        others = [SCRIPT_ACCUMULATES, "a larger batch"]
        if _forward_passes(explanation) >= SEVERAL:
            others = ["a larger batch or more micro-steps per optimizer step"]
        is_unmeasured = bool(words) and backend == words
        option = f"--backends gloo,{name}" if is_unmeasured else ""
        return "exposed communication", _try(backend, *others), option
    words = option_words("backends", name) if name else ""
    first = _setting(explanation, words, "communication", backend=name)
    text = f"exposed communication on {configuration.backend}"
    if traits.one_process:
        text, first = "gathering gradients in one process", "ddp"
    elif traits.averages_parameters:
        text = f"exposed averaging of parameters on {configuration.backend}"
    return text, _try(first, _averaging_less_often(explanation, "communication")), ""


def _faster_backend(explanation: Explanation) -> str:
    """The backend that is known to be faster than that of a row on its devices, or ""."""
    configuration = explanation.configuration
    classes = {rank.group_class for record in explanation.row.records for rank in record.ranks}
    is_on_gloo = configuration.backend == "gloo" or classes == {"ProcessGroupGloo"}
    if configuration.devices[0] != "cpu":
        return "nccl" if is_on_gloo or configuration.backend == "shm" else ""
    return "shm" if is_on_gloo and configuration.node_count == 1 else ""


def _averaging_less_often(explanation: Explanation, part: Part) -> str:
    """The setting with which an implementation averages less often."""
    configuration = explanation.configuration
    option, field = "accumulate", "accumulation_steps"
    if configuration.traits.averages_parameters:
        option = field = "sync_every"
    steps = LESS_OFTEN * getattr(configuration, field)
    return _setting(explanation, option_words(option, steps), part, LEAVES, **{field: steps})


def _setting(
    explanation: Explanation,
    words: str,
    part: Part | None = None,
    brings: str = "",
    **settings: Any,
) -> str:
    """The words of settings to try, and what that brings; "" if the sweep has them and does not
    show that they lose less to a part of the step."""
    measured = explanation.breakdowns.get(replace(explanation.configuration, **settings))
    if measured is None or not words:
        return f"{words}{brings}"
    if part is None:
        return ""
    # Whole steps differ less clearly: they include all disturbances that backends share.
    mine, theirs = explanation.breakdown.of(part), measured.of(part)
    is_less = mine and theirs and theirs.value.ends[0] > mine.value.ends[1]
    return f"{words}, which reduces it in this sweep" if is_less else ""


def _try(*remedies: str) -> str:
    """The remedies that there are."""
    known = [*filter(None, remedies)]
    return f"try {', or '.join(known)}" if known else "no setting helps that this sweep lacks"


def _waiting(explanation: Explanation) -> tuple[str, str]:
    """What it is, and its remedy."""
    slowest = explanation.slowest_rank
    if not explanation.communicates:
        return "copies that are slower than the typical one", "end other work on their devices"
    if slowest is None or not slowest.is_slow:
        return (
            "waiting for the rank that is slowest in each step, not always the same one",
            "make samples equally long, end other work on the devices, or pin ranks to cores "
            "(dpbench.load(DIR).steps has the time of each step and rank)",
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
                "improve its cooling or raise its power limit (nvidia-smi -q -d PERFORMANCE,POWER)",
            )
    return text, (
        "end other work on its device, and compare the number and length of its samples with "
        "those of other ranks"
    )


def _script_facts(explanation: Explanation) -> list[ScriptFacts]:
    """What each rank and repetition of a training script was seen to do."""
    ranks = [rank for record in explanation.row.records for rank in record.ranks]
    return [rank.script for rank in ranks if rank.script]


def _forward_passes(explanation: Explanation) -> float:
    """Forward passes of training in an optimizer step of a script: more than one if it accumulates
    gradients, none if it has no DistributedDataParallel."""
    return fmean(one.forwards / one.steps for one in _script_facts(explanation))


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
            remedy="wrap the model, model = DistributedDataParallel(model), and call that, so that "
            "all train one",
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
            remedy="use DataLoader(…, sampler=DistributedSampler(dataset)), which gives each its "
            "share, and call sampler.set_epoch(epoch) before each epoch",
        )


def _input_pipeline(explanation: Explanation, facts: ScriptFacts) -> Iterator[Cause]:
    """Steps as they are against those on a batch that stays in memory, from the second segment on.
    A slow input pipeline costs one rank as much, so it is a loss of time and not one of scaling.

    More workers are advised unless the sweep has them, or ranks and workers fill the cores.
    """
    records, configuration = explanation.row.records, explanation.configuration
    as_is, kept = list[float](), list[float]()
    for record in records:
        cached = [rank.windows["cached"] for rank in record.ranks if "cached" in rank.windows]
        if len(cached) == len(record.ranks):
            timed = [rank.timed for rank in record.ranks]
            for steps, windows in ((as_is, timed), (kept, cached)):
                steps.append(max(after_first_segment(each).mean_step_seconds for each in windows))
    if not kept:
        return
    share = mean([1 - a / b for a, b in zip(kept, as_is, strict=True)], unit="of the step")
    if share.value < SLOW_INPUT or not is_large_loss(share):
        return
    workers = facts.loader_workers or 0
    more_workers = max(2, 2 * workers)
    wanted = [f"num_workers={more_workers}"]
    wanted += ["persistent_workers=True"] * (not facts.keeps_workers)
    wanted += ["pin_memory=True"] * (facts.gpu is not None and not facts.pins_memory)
    remedy = f"try DataLoader({', '.join(wanted)}); this run had num_workers={workers}"
    option = f"--data-workers {workers},{more_workers}"
    cheaper = "make its transforms cheaper, cache their output or run them before training"
    first = records[0]
    threads = first.ranks[0].threads or 1
    cores = first.host_load.cores if first.host_load else 0
    # A rank on a GPU leaves its core to its workers most of the time.
    is_on_cpu = first.trial.devices[0] == "cpu"
    busy = max(threads, 1 + workers) if is_on_cpu else workers
    more = [
        other.data_workers
        for other in explanation.breakdowns
        if other.data_workers is not None and other.data_workers > workers
        if replace(other, data_workers=configuration.data_workers) == configuration
    ]
    if more:
        remedy = f"{cheaper}; num_workers={','.join(map(str, sorted(more)))} was measured, too"
        option = ""
    elif 0 < cores <= len(first.ranks) * busy:
        each = f"{units.counted(threads, 'thread')} and num_workers={workers}"
        remedy = (
            f"{cheaper}, or use fewer ranks on this machine; {len(first.ranks)} ranks, each with "
            f"{each}, already fill {units.counted(cores, 'core')}, for which more workers would "
            "compete"
        )
        option = ""
    seconds = [units.seconds(float(f"{fmean(steps):.2g}")) for steps in (kept, as_is)]
    yield Cause(
        kind="input pipeline",
        share=share,
        text=f"the input pipeline ({seconds[1]} a step; at best {seconds[0]}, as with the batch "
        "kept in memory)",
        remedy=remedy,
        option=option,
    )


def _averaging(facts: Sequence[ScriptFacts], breakdown: Breakdown) -> Iterator[Cause]:
    """What DistributedDataParallel does more often than it has to: a part of communication."""
    share, within = breakdown.around("communication")
    per_step = fmean(one.reducing_forwards / one.steps for one in facts)
    if per_step >= SEVERAL:
        yield Cause(
            kind="reductions",
            share=share and share.scaled(1 - 1 / per_step, unit="of the step"),
            is_bound=True,
            text=f"averaging gradients {per_step:.3g} times per optimizer step instead of "
            f"once{within}",
            remedy="put with model.no_sync(): around forward and backward of all micro-steps but "
            "the last, which then averages them once",
        )
    if all(one.finds_unused and not one.has_unused for one in facts):
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
            remedy='call torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) before the model is '
            "made, so that each rank has its own",
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
            remedy=f"call torch.set_num_threads({per_rank}), or remove that call and use {given}",
        )
    elif threads == 1 and trial.devices[0] == "cpu" and cores >= 2 * ranks:
        yield Cause(
            kind="threads",
            text=f"{ranks} ranks compute with one thread each, on {units.counted(cores, 'core')}",
            remedy=f"set OMP_NUM_THREADS={per_rank}, or try {given}",
        )

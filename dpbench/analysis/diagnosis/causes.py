"""Causes of what is slow or wrong in training, each with what to do about it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, Literal

from dpbench import units
from dpbench.analysis.diagnosis.factors import Factor, Part, is_large_loss
from dpbench.analysis.estimate import Estimate, mean
from dpbench.analysis.noise import FREE_THE_MACHINE
from dpbench.analysis.throughput import after_first_segment, slow_steps
from dpbench.messages import option_words
from dpbench.records.trial import ScriptFacts, TrialRecord, Window

if TYPE_CHECKING:
    from dpbench.analysis.diagnosis.explanation import Explanation

MIN_INPUT_SHARE = 0.1
"""Smallest share of a step at which the input pipeline is named: loading in the training process
costs a few percent of short steps in any script."""
SURE_SHARE = 0.01
"""A loss is sure if the lower end of its interval is at least this share of a step."""
SEVERAL_FORWARDS = 1.5
"""A script takes several forward passes per optimizer step if it takes this many or more."""
EXPLAINING_SHARE = 0.5
"""A cause explains a loss if it makes this share of it or more."""
SLOW_CLOCK_SHARE = 0.95
"""A GPU's clock makes other ranks wait if it is at most this share of theirs."""
ORDINARY_WAITING_SHARE = 0.1
"""Waiting for no rank in particular is not named below this share of a script's step: ranks
without a fault wait for 4 to 6 % of steps of 20 ms on shared cores."""
LESS_OFTEN_FACTOR = 4
"""How many times as rarely gradients, or parameters, are averaged by the settings to try."""
QUARTER_LEFT = ", which leaves about a quarter of this loss"
ACCUMULATION_ADVICE = (
    f"gradient accumulation over {LESS_OFTEN_FACTOR} micro-steps with no_sync(){QUARTER_LEFT}"
)
ONE_CLOCK_PARTS: tuple[Part, ...] = ("wrapper", "waiting")
"""Parts that a process that drives all replicas cannot separate, as it has only one clock."""
Effect = Literal["wrong", "loss", "part of a loss"]
"""What a cause does: it makes the training wrong, at any speed; it makes steps longer; or it is a
part of what makes them longer, so that its share is the most that it can cost."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cause:
    """Something that makes a configuration slow, or wrong, and what to do about it."""

    kind: str
    text: str
    """The cause in words: "exposed communication on gloo"."""
    remedy: str
    """Advice and its effect, or that nothing helps: "try --backends shm"."""
    share: Estimate | None = None
    """Share of the step's seconds; None if it was not measured."""
    parts: tuple[Part, ...] = ()
    """The parts of the factor that it names, or is a part of."""
    effect: Effect = "loss"
    explains: tuple[Part, ...] = ()
    """Parts of a step whose losses it makes, so that they are no causes of their own."""
    option: tuple[str, ...] = ()
    """The option of `dpbench sweep`, and its values, that measure what the remedy brings."""

    @property
    def is_uncertain(self) -> bool:
        """Whether its own share may be next to nothing: 8 ± 8 % of the step."""
        return self.share is not None and self.effect == "loss" and self.share.ends[0] < SURE_SHARE

    @property
    def whole(self) -> tuple[Part, ...]:
        """The parts of the loss that it is a part of; () if it is none."""
        return self.parts if self.effect == "part of a loss" else ()

    @property
    def order(self) -> tuple[bool, bool, float, bool]:
        """What is wrong comes first, then the largest share, and behind those that are sure the
        uncertain ones; last what was not measured. A part comes after the factor that has it."""
        is_last = self.share is None or self.is_uncertain
        share = -self.share.value if self.share else 0.0
        return self.effect != "wrong", is_last, share, self.effect == "part of a loss"

    def explained_by(self, other: Cause) -> bool:
        """Whether the larger part of the factor that it names is due to another cause."""
        if self.effect != "loss" or not self.parts or not {*self.parts} <= {*other.explains}:
            return False
        return bool(
            self.share and other.share and other.share.value >= EXPLAINING_SHARE * self.share.value
        )


def causes_of(explanation: Explanation) -> tuple[Cause, ...]:
    """The causes that make a configuration slow or wrong: first those that are wrong, then the
    largest loss.

    A factor is blamed if the whole interval of its share lies above 0, or that of its ratio below
    1, and it costs 5 % of the step or more, even where the speed is too noisy to state; each is
    tested singly, without a correction for their number. With a single repetition none is blamed,
    as there is no interval, none with slow first steps, which are in all of them, and none of a
    row that scales linearly. A setting that the sweep has is advised only if it loses less there.
    Of one replica in a sweep of several, only slow steps are named. Where load spoils the speeds,
    facts are named, without their shares.
    """
    causes = [*_slow_steps(explanation)]
    is_alone = explanation.row.group_size == 1
    if is_alone and any(other.group_size > 1 for other in explanation.breakdowns):
        return tuple(causes)
    first_steps = [*_slow_first_steps(explanation)]
    causes += [*first_steps, *_loading(explanation)]
    if explanation.script_facts:
        causes += [*_faults(explanation.script_facts)]
        causes += [*_devices_and_threads(explanation.row.records[0])]
        causes += [*(() if first_steps else _input_pipeline(explanation))]
    if explanation.is_spoiled or not explanation.is_linear:
        causes += [*_sync_batch_norm(explanation), *_averaging(explanation)]
        causes += [*(() if first_steps else _factor_losses(explanation))]
    found = [one for one in causes if not any(map(one.explained_by, causes))]
    ordered = sorted(found, key=lambda cause: cause.order)
    if not explanation.is_spoiled:
        return tuple(ordered)
    # What was not concluded from a share is so at any speed.
    facts = [one for one in ordered if one.effect != "loss" or one.share is None]
    return tuple(replace(one, share=None) for one in facts)


def _slow_steps(explanation: Explanation) -> Iterator[Cause]:
    """Steps that take far longer than the others, if they cost much."""
    first = explanation.row.warm_up
    slow = slow_steps(explanation.row.records, first.steps if first else 0)
    if slow is None or not is_large_loss(slow.share):
        return
    longer = units.seconds(float(f"{slow.extra_seconds:.2g}"))
    yield Cause(
        kind="slow steps",
        share=slow.share,
        explains=("contention", "wrapper", "waiting"),
        text=f"rare slow steps (1 in {slow.interval:.0f}, {longer} longer than the others)",
        remedy=FREE_THE_MACHINE
        if explanation.row.is_under_load
        else "find what runs now and then, such as garbage collection (gc.freeze() after the "
        "warm-up), logging or a branch of the model; dpbench.load(DIR).steps has the time of each "
        "step",
    )


def _slow_first_steps(explanation: Explanation) -> Iterator[Cause]:
    """Steps that the warm-up should have had."""
    first = explanation.row.warm_up
    if first is not None and is_large_loss(first.share):
        warmup = explanation.configuration.warmup + first.steps
        yield Cause(
            kind="warm-up",
            share=first.share,
            text=f"slow first steps of the window (the first {first.steps})",
            remedy=f"measure with {option_words('warmup', warmup)}, which leaves them out",
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
    is_measured = replace(configuration, **more) in explanation.breakdowns
    yield Cause(
        kind="data",
        share=explanation.phases.data_share,
        text="loading data, on every rank",
        remedy=_advice("" if is_measured else words, "cheaper transforms"),
    )


def _sync_batch_norm(explanation: Explanation) -> Iterator[Cause]:
    """Layers that communicate in steps without synchronization, too: a part of the wrapper."""
    layers = max(record.facts.sync_batch_norms for record in explanation.row.records)
    if layers and explanation.trains_together:
        share, parts = explanation.breakdown.share_and_parts("wrapper")
        yield Cause(
            kind="sync batch norm",
            share=share,
            parts=parts,
            effect="part of a loss",
            explains=parts,
            text=f"SyncBatchNorm ({units.counted(layers, 'layer')}), which communicates in every "
            "forward pass, with and without averaging of gradients",
            remedy="use GroupNorm, or BatchNorm with a larger batch per rank: both stay local",
        )


def _averaging(explanation: Explanation) -> Iterator[Cause]:
    """Work that DistributedDataParallel does more often than it has to: a part of communication."""
    facts = explanation.script_facts
    if not facts:
        return
    share, parts = explanation.breakdown.share_and_parts("communication")
    per_step = fmean(one.reducing_forwards / one.steps for one in facts)
    if per_step >= SEVERAL_FORWARDS:
        yield Cause(
            kind="reductions",
            share=share and share.scaled(1 - 1 / per_step, unit="of the step"),
            parts=parts,
            effect="part of a loss",
            explains=parts,
            text=f"averaging gradients {per_step:.3g} times per optimizer step instead of once",
            remedy="put with model.no_sync(): around forward and backward of all micro-steps but "
            "the last, which then averages them once",
        )
    if all(one.finds_unused and not one.has_unused for one in facts):
        yield Cause(
            kind="find unused",
            text="the search for unused parameters in every step, although all had a gradient",
            remedy="leave find_unused_parameters=True out of DistributedDataParallel(…)",
            option=("--find-unused", "auto,off"),
        )


def _factor_losses(explanation: Explanation) -> Iterator[Cause]:
    """The large losses among the factors, except those that a gain makes up for, and waiting as
    any script has it."""
    slowest = explanation.slowest_rank
    has_slow_rank = slowest is not None and slowest.is_slow
    ordinary = ORDINARY_WAITING_SHARE if explanation.is_script and not has_slow_rank else 0.0
    offset = [loss for loss, _ in explanation.offset_losses]
    backend = _known_faster_backend(explanation)
    is_new = replace(explanation.configuration, backend=backend) not in explanation.breakdowns
    is_advised = backend and is_new and explanation.is_script
    option = ("--backends", f"gloo,{backend}") if is_advised else ()
    for factor in explanation.breakdown.factors:
        is_ordinary = "waiting" in factor.parts and factor.share.value < ordinary
        if factor.is_large_loss and not is_ordinary and factor not in offset:
            is_separate = len(factor.parts) == 1 or factor.parts == ONE_CLOCK_PARTS
            text, remedy = _loss_and_remedy(factor, explanation)
            yield Cause(
                kind=factor.parts[0] if is_separate else "not separated",
                share=factor.share,
                parts=factor.parts,
                text=text,
                remedy=remedy,
                option=option if factor.parts == ("communication",) else (),
            )


def _loss_and_remedy(factor: Factor, explanation: Explanation) -> tuple[str, str]:
    """The loss in words, and its remedy."""
    configuration = explanation.configuration
    match factor.parts:
        case ("granularity",):
            return (
                "granularity, as a small shard takes longer per sample",
                "try a larger --batch-sizes or fewer replicas",
            )
        case ("contention",):
            on_gpus = "try fewer replicas per host, as they share power, PCIe and its cores"
            on_cpu = "no setting removes it, as they share cores and memory bandwidth"
            return (
                f"contention, as {configuration.group_size} copies slow each other without "
                "communicating",
                on_cpu if configuration.devices[0] == "cpu" else on_gpus,
            )
        case ("waiting",):
            return _waiting(explanation)
        # One process has one clock: it hides the work of driving all replicas.
        case ("wrapper",) | ("wrapper", "waiting"):
            return _wrapper(explanation)
        case ("communication",):
            return _communication(explanation)
    return " or ".join(factor.parts), "measure what separates them, see the table"


def _waiting(explanation: Explanation) -> tuple[str, str]:
    """Copies that differ, one slow rank, or now one rank and now another."""
    slowest = explanation.slowest_rank
    if not explanation.communicates:
        return "copies that are slower than the typical one", "end other work on their devices"
    if slowest is None or not slowest.is_slow:
        return (
            "waiting for the rank that is slowest in each step, not always the same one",
            "make samples equally long, end other work on the devices, or pin ranks to cores "
            "(dpbench.load(DIR).steps has the time of each step and rank)",
        )
    clock = _slow_clock(explanation, slowest.rank)
    return (
        f"waiting for rank {slowest.rank} ({slowest.device}), the slowest in all "
        f"{slowest.repetitions} repetitions{clock}",
        "improve its cooling or raise its power limit (nvidia-smi -q -d PERFORMANCE,POWER)"
        if clock
        else "end other work on its device, and compare the number and length of its samples with "
        "those of other ranks",
    )


def _slow_clock(explanation: Explanation, slowest: int) -> str:
    """By how much the GPU of a rank has a slower clock than the others, and why; "" if not."""
    ranks = explanation.row.ranks
    slow = [state for one in ranks if one.rank == slowest for state in one.timed.gpu]
    others = [state for one in ranks if one.rank != slowest for state in one.timed.gpu]
    if not (slow and others):
        return ""
    mine, theirs = (median(state.sm_clock_mhz for state in some) for some in (slow, others))
    if mine > SLOW_CLOCK_SHARE * theirs:
        return ""
    reasons = dict.fromkeys(reason for state in slow for reason in state.slowdowns)
    why = f" ({', '.join(reasons)})" if reasons else ""
    return f", with an SM clock of {mine:,.0f} MHz against {theirs:,.0f}{why}"


def _wrapper(explanation: Explanation) -> tuple[str, str]:
    """Work beside the plain step in words, and settings that make it shorter or rarer."""
    traits = explanation.configuration.traits
    if explanation.is_script:
        return (
            "what a rank does beside its own training (hooks, buckets, other collectives)",
            "remove collectives of its own, such as a loss that is averaged to log"
            if _accumulates(explanation)
            else _advice(ACCUMULATION_ADVICE, "a larger batch: it is a cost per step"),
        )
    if traits.one_process and explanation.row.group_size > 1:
        return (
            "driving all replicas from one process, where they wait for each other",
            "try ddp, which has a process for each replica",
        )
    other = _setting(explanation, "wrapper", traits.alternative, implementation=traits.alternative)
    remedies = other, _less_often(explanation, "wrapper"), "a larger --batch-sizes"
    return "the wrapper's own work, a cost per step", _advice(*remedies)


def _communication(explanation: Explanation) -> tuple[str, str]:
    """Communication that is exposed, and what makes it faster or rarer."""
    configuration, name = explanation.configuration, _known_faster_backend(explanation)
    part: Part = "communication"
    if explanation.is_script:
        imports = "import dpbench.parallel and " if name == "shm" else ""
        words = name and f'{imports}init_process_group("{name}")'
        others = [ACCUMULATION_ADVICE, "a larger batch"]
        if _accumulates(explanation):
            others = ["a larger batch or more micro-steps per optimizer step"]
        return f"exposed {part}", _advice(_setting(explanation, part, words, backend=name), *others)
    less_often = _less_often(explanation, part)
    if configuration.traits.one_process:
        return "gathering gradients in one process", _advice("ddp", less_often)
    faster = _setting(explanation, part, name and option_words("backends", name), backend=name)
    what = "averaging of parameters" if configuration.traits.averages_parameters else part
    return f"exposed {what} on {configuration.backend}", _advice(faster, less_often)


def _accumulates(explanation: Explanation) -> bool:
    """Whether ranks of a script take several forward passes per optimizer step."""
    facts = explanation.script_facts
    return bool(facts) and fmean(one.forwards / one.steps for one in facts) >= SEVERAL_FORWARDS


def _less_often(explanation: Explanation, part: Part) -> str:
    """The setting that averages gradients, or parameters, less often."""
    configuration = explanation.configuration
    option = "sync_every" if configuration.traits.averages_parameters else "accumulate"
    steps = LESS_OFTEN_FACTOR * getattr(configuration, option)
    return _setting(explanation, part, option_words(option, steps), QUARTER_LEFT, **{option: steps})


def _known_faster_backend(explanation: Explanation) -> str:
    """The backend that is known to be faster than that of a row on its devices, or ""."""
    configuration = explanation.configuration
    classes = {record.facts.group_class for record in explanation.row.records}
    is_on_gloo = configuration.backend == "gloo" or classes == {"ProcessGroupGloo"}
    if configuration.devices[0] != "cpu":
        return "nccl" if is_on_gloo or configuration.backend == "shm" else ""
    return "shm" if is_on_gloo and configuration.node_count == 1 else ""


def _setting(
    explanation: Explanation, part: Part, words: str | None, effect: str = "", **settings: Any
) -> str:
    """The words of settings to try, with their effect; if the sweep has them, that they lose less
    to a part of the step, or "" where it does not show that; "" without words."""
    measured = explanation.breakdowns.get(replace(explanation.configuration, **settings))
    if not words or measured is None:
        return words + effect if words else ""
    # Whole steps differ less clearly: they include all disturbances that backends share.
    mine, theirs = explanation.breakdown.factor_of(part), measured.factor_of(part)
    is_less = mine and theirs and theirs.value.ends[0] > mine.value.ends[1]
    return f"{words}, which reduces it in this sweep" if is_less else ""


def _advice(*remedies: str) -> str:
    """The remedies that there are."""
    known = [*filter(None, remedies)]
    return f"try {', or '.join(known)}" if known else "no setting helps that this sweep lacks"


def _faults(by_rank: Sequence[ScriptFacts]) -> Iterator[Cause]:
    """Ranks that do not train one model, or all on the same samples."""
    name = next(filter(None, (facts.differing_parameter for facts in by_rank)), None)
    is_wrapped = any(facts.is_wrapped for facts in by_rank)
    if name is not None and not is_wrapped:
        yield Cause(
            kind="never synchronized",
            effect="wrong",
            text=f"ranks train models of their own, as {name} differs after the warm-up, and no "
            "forward pass went through DistributedDataParallel",
            remedy="wrap the model, model = DistributedDataParallel(model), and call that, so that "
            "all train one",
        )
    elif name is not None:
        yield Cause(
            kind="replicas differ",
            effect="wrong",
            text=f"replicas differ, as {name} is not the same on all ranks after the warm-up",
            remedy="change parameters before wrapping the model, on all ranks alike, and let all "
            "ranks load the same checkpoint",
        )
    if is_wrapped and any(facts.same_samples for facts in by_rank):
        yield Cause(
            kind="same samples",
            effect="wrong",
            text="all ranks train on the same samples, as their batches are equal",
            remedy="use DataLoader(…, sampler=DistributedSampler(dataset)), which gives each its "
            "share, and call sampler.set_epoch(epoch) before each epoch",
        )


def _input_pipeline(explanation: Explanation) -> Iterator[Cause]:
    """Steps as they are against those on a batch that stays in memory, from the second segment on.
    A slow input pipeline costs one rank as much, so it is a loss of time and not one of scaling.

    More workers are advised unless the sweep has them, or ranks and workers fill the cores.
    """

    def slowest(windows: Iterable[Window]) -> float:
        return max(after_first_segment(window).mean_step_seconds for window in windows)

    steps = [
        [slowest(rank.windows[mode] for rank in record.ranks) for mode in ("timed", "cached")]
        for record in explanation.row.records
        if all("cached" in rank.windows for rank in record.ranks)
    ]
    if not steps:
        return
    share = mean([1 - kept / as_is for as_is, kept in steps], unit="of the step")
    if share.value < MIN_INPUT_SHARE or not is_large_loss(share):
        return
    facts, record = explanation.script_facts[0], explanation.row.records[0]
    workers, settings = facts.loader_workers or 0, explanation.configuration
    cheaper = "make its transforms cheaper, cache their output or run them before training"
    # A rank on a GPU leaves its core to its workers most of the time.
    threads = (record.ranks[0].threads or 1) if settings.devices[0] == "cpu" else 0
    busy = len(record.ranks) * max(threads, workers + bool(threads))
    cores, option = record.host_load.cores if record.host_load else 0, tuple[str, ...]()
    measured = [
        count
        for other in explanation.breakdowns
        if (count := other.data_workers or 0) > workers
        if replace(other, data_workers=settings.data_workers) == settings
    ]
    if measured:
        counts = ",".join(map(str, sorted(measured)))
        remedy = f"{cheaper}; num_workers={counts} was measured, too"
    elif 0 < cores <= busy:
        those = " with their workers" if workers else ""
        ranks = units.counted(len(record.ranks), "rank")
        full = f"{ranks}{those} already fill {units.counted(cores, 'core')}"
        remedy = f"{cheaper}, or use fewer ranks, as {full}"
    else:
        more = max(2, 2 * workers)
        wanted = [f"num_workers={more}"]
        wanted += ["persistent_workers=True"] * (not facts.keeps_workers)
        wanted += ["pin_memory=True"] * (facts.gpu is not None and not facts.pins_memory)
        remedy = f"try DataLoader({', '.join(wanted)}); this run had num_workers={workers}"
        option = "--data-workers", f"{workers},{more}"
    now, at_best = (units.seconds(float(f"{fmean(side):.2g}")) for side in zip(*steps, strict=True))
    yield Cause(
        kind="input pipeline",
        share=share,
        text="the input pipeline",
        remedy=f"a step takes {now}, and {at_best} with the batch kept in memory; {remedy}",
        option=option,
    )


def _devices_and_threads(record: TrialRecord) -> Iterator[Cause]:
    """Ranks that share one GPU where each was given its own; too many threads on a CPU, or one
    where cores are idle."""
    devices, ranks = record.configuration.devices, len(record.ranks)
    gpus = {rank.script.gpu for rank in record.ranks if rank.script and rank.script.gpu}
    wanted = len({*devices})
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
    has_too_many = threads > 1 and ranks * threads > cores > 0
    if has_too_many or (threads == 1 and devices[0] == "cpu" and cores >= 2 * ranks):
        option = option_words("threads", per_rank)
        yield Cause(
            kind="threads",
            text=f"{ranks} ranks compute with {units.counted(threads, 'thread')} each, on "
            f"{units.counted(cores, 'core')}",
            remedy=f"call torch.set_num_threads({per_rank}), or remove that call and use {option}"
            if has_too_many
            else f"set OMP_NUM_THREADS={per_rank}, or try {option}",
        )

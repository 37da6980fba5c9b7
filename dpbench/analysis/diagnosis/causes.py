"""Causes of what is slow or wrong in training, each with what to do about it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, median
from typing import Any, Literal

from dpbench import units
from dpbench.analysis.diagnosis.explanation import Explanation
from dpbench.analysis.diagnosis.factors import Factor, Part, is_large_loss
from dpbench.analysis.estimate import Estimate, mean
from dpbench.analysis.noise import FREE_THE_MACHINE
from dpbench.analysis.throughput import after_first_segment, slow_steps
from dpbench.messages import option_words
from dpbench.records.trial import ScriptFacts, Window

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
Effect = Literal["wrong", "loss", "possible loss", "bound", "fact"]
"""A cause makes the training wrong, at any speed; costs its share of each step, or perhaps next to
nothing (8 ± 8 %); is a part of a loss, so that its share is the most that it can cost; or is a fact
whose cost was not measured."""
RANKS: dict[Effect, int] = {"wrong": 0, "loss": 1, "bound": 1, "possible loss": 2, "fact": 3}
"""The order in which causes are listed; within a rank by their share."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cause:
    """Something that makes a configuration slow, or wrong, and what to do about it."""

    kind: str
    effect: Effect
    text: str
    """The cause in words: "exposed communication on gloo"."""
    remedy: str
    """Advice and its effect, or that nothing helps: "try --backends shm"."""
    share: Estimate | None = None
    """Share of the step's seconds; None if it was not measured."""
    explains: tuple[Part, ...] = ()
    """Parts of a step whose losses it makes, or is a part of."""
    options: Mapping[str, Sequence[object]] = field(default_factory=dict)
    """Options of `dpbench sweep`, with the values that measure what the remedy brings."""

    @property
    def order(self) -> tuple[int, float]:
        """What is wrong comes first, then the largest loss; last what was not measured."""
        return RANKS[self.effect], -self.share.value if self.share else 0.0


def causes_of(explanation: Explanation) -> tuple[Cause, ...]:
    """The causes that make a configuration slow or wrong, in their order.

    A factor is blamed if its share is surely above 0 or its ratio surely below 1, and it costs 5 %
    of the step or more, even where the speed is too noisy to state; each is tested singly, without
    a correction for their number. None is blamed with a single repetition, with slow first steps,
    which are in all of them, or where the row scales linearly. Of one replica in a sweep of
    several, only slow steps are named. Where load spoils the speeds, facts are named, without their
    shares.
    """
    causes = [*_slow_steps(explanation)]
    is_alone = explanation.row.group_size == 1
    if is_alone and any(other.group_size > 1 for other in explanation.breakdowns):
        return tuple(causes)
    first_steps = [*_slow_first_steps(explanation)]
    causes += [*first_steps, *_loading(explanation)]
    if explanation.script_facts:
        causes += [*_faults(explanation.script_facts), *_devices_and_threads(explanation)]
        causes += [*(() if first_steps else _input_pipeline(explanation))]
    if explanation.is_spoiled or not explanation.is_linear:
        causes += [*_parts_of_losses(explanation)]
        causes += [*(() if first_steps else _factor_losses(explanation, causes))]
    if explanation.is_spoiled:
        # What was not concluded from a share is so at any speed.
        causes = [replace(one, share=None) for one in causes if "loss" not in one.effect]
    return tuple(sorted(causes, key=lambda cause: cause.order))


def _cause(kind: str, text: str, remedy: str, share: Estimate | None = None, **more: Any) -> Cause:
    """A loss if its share was measured, or else a fact, unless its effect is one of `more`."""
    effect: Effect = "fact"
    if share is not None:
        effect = "loss" if share.ends[0] >= SURE_SHARE else "possible loss"
    values = {"effect": effect, **more}
    return Cause(kind=kind, text=text, remedy=remedy, share=share, **values)


def _slow_steps(explanation: Explanation) -> Iterator[Cause]:
    """Steps that take far longer than the others, if they cost much."""
    first = explanation.row.warm_up
    slow = slow_steps(explanation.row.records, first.steps if first else 0)
    if slow is None or not is_large_loss(slow.share):
        return
    longer = units.seconds(float(f"{slow.extra_seconds:.2g}"))
    text = f"rare slow steps (1 in {slow.interval:.0f}, {longer} longer than the others)"
    remedy = (
        "find what runs now and then, such as garbage collection (gc.freeze() after the warm-up) "
        "or logging; dpbench.load(DIR).steps has the time of each step"
    )
    if explanation.row.is_under_load:
        remedy = FREE_THE_MACHINE
    explains = "contention", "wrapper", "waiting"
    yield _cause("slow steps", text, remedy, slow.share, explains=explains)


def _slow_first_steps(explanation: Explanation) -> Iterator[Cause]:
    """Steps that the warm-up should have had."""
    first = explanation.row.warm_up
    if first is not None and is_large_loss(first.share):
        warmup = explanation.configuration.warmup + first.steps
        text = f"slow first steps of the window (the first {first.steps})"
        remedy = f"measure with {option_words('warmup', warmup)}, which leaves them out"
        yield _cause("warm-up", text, remedy, first.share, options={"warmup": (warmup,)})


def _loading(explanation: Explanation) -> Iterator[Cause]:
    """A loader that is as slow in `single` costs no efficiency, and still costs time."""
    if explanation.phases is None or not is_large_loss(explanation.phases.data_share):
        return
    settings = explanation.configuration
    more: dict[str, Any] = {"data_workers": 2 * (settings.data_workers or 1)}
    if not (settings.data_workers or settings.prefetch):
        more = {"prefetch": 2, **more}
    remedies = ["cheaper transforms"]
    if replace(settings, **more) not in explanation.breakdowns:
        remedies.insert(0, " ".join(option_words(name, value) for name, value in more.items()))
    share = explanation.phases.data_share
    yield _cause("data", "loading data, on every rank", _advice(remedies), share)


def _faults(by_rank: Sequence[ScriptFacts]) -> Iterator[Cause]:
    """Ranks that do not train one model, or all on the same samples."""
    name = next(filter(None, (facts.differing_parameter for facts in by_rank)), None)
    is_wrapped = any(facts.is_wrapped for facts in by_rank)
    if name is not None and not is_wrapped:
        text = f"ranks train models of their own, as {name} differs after the warm-up"
        remedy = "wrap the model, model = DistributedDataParallel(model), and call that"
        yield _cause("never synchronized", text, remedy, effect="wrong")
    elif name is not None:
        text = f"replicas differ, as {name} is not the same on all ranks after the warm-up"
        remedy = "load one checkpoint on all ranks, and change no parameter before wrapping"
        yield _cause("replicas differ", text, remedy, effect="wrong")
    if is_wrapped and any(facts.same_samples for facts in by_rank):
        text = "all ranks train on the same samples, as their batches are equal"
        remedy = (
            "use DataLoader(…, sampler=DistributedSampler(dataset)), and call "
            "sampler.set_epoch(epoch) before each epoch"
        )
        yield _cause("same samples", text, remedy, effect="wrong")


def _devices_and_threads(explanation: Explanation) -> Iterator[Cause]:
    """Ranks that share one GPU where each was given its own; too many threads on a CPU, or one
    where cores are idle."""
    record, devices = explanation.row.records[0], {*explanation.configuration.devices}
    ranks, cores = len(record.ranks), record.host_load.cores if record.host_load else 0
    gpus = {rank.script.gpu for rank in record.ranks if rank.script and rank.script.gpu}
    if gpus and len(gpus) < len(devices):
        on = f"{units.counted(len(gpus), 'GPU')} instead of {len(devices)}"
        text = f"the parameters of {ranks} ranks are on {on}"
        device = 'torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))'
        yield _cause("shared gpu", text, f"call {device} before the model is made")
    threads = max(rank.threads or 0 for rank in record.ranks)
    each = units.counted(threads, "thread")
    text = f"{ranks} ranks compute with {each} each, on {units.counted(cores, 'core')}"
    most = max(1, cores // ranks)
    option = option_words("threads", most)
    if threads > 1 and ranks * threads > cores > 0:
        remedy = f"call torch.set_num_threads({most}), or remove that call and use {option}"
        yield _cause("threads", text, remedy)
    elif threads == 1 and "cpu" in devices and cores >= 2 * ranks:
        remedy = f"set OMP_NUM_THREADS={most}, or try {option}"
        yield _cause("threads", text, remedy, options={"threads": (1, most)})


def _input_pipeline(explanation: Explanation) -> Iterator[Cause]:
    """Steps as they are against those on a batch that stays in memory, from the second segment on.
    A slow input pipeline costs one rank as much, so it is a loss of time and not one of scaling."""

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
    now, at_best = (units.seconds(float(f"{fmean(side):.2g}")) for side in zip(*steps, strict=True))
    faster, workers = _faster_input(explanation)
    remedy = f"a step takes {now}, and {at_best} with the batch kept in memory. {faster}"
    options = {"data_workers": workers} if workers else {}
    yield _cause("input pipeline", "the input pipeline", remedy, share, options=options)


def _faster_input(explanation: Explanation) -> tuple[str, Sequence[int]]:
    """What makes the input pipeline of a script faster, and the numbers of workers to compare: more
    of them, unless the sweep has those, or ranks and workers fill the cores."""
    facts, record = explanation.script_facts[0], explanation.row.records[0]
    workers, settings = facts.loader_workers or 0, explanation.configuration
    cheaper = "Make its transforms cheaper, cache their output or run them before training"
    alike = (
        other.data_workers or 0
        for other in explanation.breakdowns
        if replace(other, data_workers=settings.data_workers) == settings
    )
    if measured := sorted(count for count in alike if count > workers):
        return f"{cheaper}; num_workers={','.join(map(str, measured))} was measured, too", ()
    # A rank on a GPU leaves its core to its workers most of the time.
    threads = (record.ranks[0].threads or 1) if settings.devices[0] == "cpu" else 0
    busy = len(record.ranks) * max(threads, workers + bool(threads))
    cores = record.host_load.cores if record.host_load else 0
    if 0 < cores <= busy:
        ranks = units.counted(len(record.ranks), "rank") + (
            " with their workers" if workers else ""
        )
        full = f"{ranks} already fill {units.counted(cores, 'core')}"
        return f"{cheaper}, or use fewer ranks, as {full}", ()
    more = max(2, 2 * workers)
    wanted = [f"num_workers={more}"]
    if not facts.keeps_workers:
        wanted.append("persistent_workers=True")
    if facts.gpu is not None and not facts.pins_memory:
        wanted.append("pin_memory=True")
    loader = f"Try DataLoader({', '.join(wanted)}); this run had num_workers={workers}"
    return loader, (workers, more)


def _parts_of_losses(explanation: Explanation) -> Iterator[Cause]:
    """Layers that communicate in each forward pass, also without synchronization, and work that
    DistributedDataParallel does more often than it has to."""
    breakdown, facts = explanation.breakdown, explanation.script_facts
    layers = max(record.facts.sync_batch_norms for record in explanation.row.records)
    if layers and explanation.trains_together:
        text = f"SyncBatchNorm ({units.counted(layers, 'layer')}), which communicates in every "
        text += "forward pass, with and without averaging of gradients"
        remedy = "use GroupNorm, or BatchNorm with a larger batch per rank: both stay local"
        yield _bound("sync batch norm", text, remedy, breakdown.factor_of("wrapper"))
    if not facts:
        return
    per_step = fmean(one.reducing_forwards / one.steps for one in facts)
    if per_step >= SEVERAL_FORWARDS:
        text = f"averaging gradients {per_step:.3g} times per optimizer step instead of once"
        remedy = "put all micro-steps but the last, forward and backward, into model.no_sync()"
        factor = breakdown.factor_of("communication")
        yield _bound("reductions", text, remedy, factor, most=1 - 1 / per_step)
    if all(one.finds_unused and not one.has_unused for one in facts):
        text = "the search for unused parameters in every step, although all had a gradient"
        remedy = "leave find_unused_parameters=True out of DistributedDataParallel(…)"
        yield _cause("find unused", text, remedy, options={"find_unused": ("auto", "off")})


def _bound(kind: str, text: str, remedy: str, factor: Factor | None, *, most: float = 1.0) -> Cause:
    """A part of a factor's loss, at `most` this fraction of it; a fact without the factor."""
    if factor is None:
        return _cause(kind, text, remedy)
    share = factor.share.scaled(most, unit="of the step")
    return _cause(kind, text, remedy, share, effect="bound", explains=factor.parts)


def _factor_losses(explanation: Explanation, others: Sequence[Cause]) -> Iterator[Cause]:
    """The large losses among the factors, except those that a gain makes up for, those of which
    `others` explain the larger part, and waiting as any script has it."""
    slowest = explanation.slowest_rank
    has_slow_rank = slowest is not None and slowest.is_slow
    ordinary = ORDINARY_WAITING_SHARE if explanation.is_script and not has_slow_rank else 0.0
    offset = [loss for loss, _ in explanation.offset_losses]
    for factor in explanation.breakdown.factors:
        share, parts = factor.share, {*factor.parts}
        is_ordinary = "waiting" in parts and share.value < ordinary
        explaining = (one.share for one in others if one.share and parts <= {*one.explains})
        is_explained = any(one.value >= EXPLAINING_SHARE * share.value for one in explaining)
        if factor.is_large_loss and not (is_ordinary or is_explained or factor in offset):
            yield _loss(factor, explanation)


def _loss(factor: Factor, explanation: Explanation) -> Cause:
    """The loss of a factor with its remedy, by its part and by whether a script has it."""
    settings, share = explanation.configuration, factor.share
    match factor.parts:
        case ("granularity",):
            text = "granularity, as a small shard takes longer per sample"
            remedy = "try a larger --batch-sizes or fewer replicas"
            return _cause("granularity", text, remedy, share)
        case ("contention",):
            slow = f"as {settings.group_size} copies slow each other without communicating"
            remedy = "try fewer replicas per host, as they share power, PCIe and its cores"
            if settings.devices[0] == "cpu":
                remedy = "no setting removes it, as they share cores and memory bandwidth"
            return _cause("contention", f"contention, {slow}", remedy, share)
        case ("waiting",):
            return _waiting(share, explanation)
        case ("wrapper",) | ("wrapper", "waiting"):
            # The one clock of a process that drives all replicas has both parts.
            return _wrapper(share, explanation)
        case ("communication",):
            return _communication(share, explanation)
    remedy = "measure what separates them, see the table"
    return _cause("not separated", " or ".join(factor.parts), remedy, share)


def _waiting(share: Estimate, explanation: Explanation) -> Cause:
    """Copies that differ, one slow rank, or now one rank and now another."""
    slowest = explanation.slowest_rank
    if not explanation.communicates:
        text = "copies that are slower than the typical one"
        return _cause("waiting", text, "end other work on their devices", share)
    if slowest is None or not slowest.is_slow:
        text = "waiting for the rank that is slowest in each step, not always the same one"
        remedy = "make samples equally long, end other work on the devices, or pin ranks to cores"
        return _cause("waiting", text, remedy, share)
    remedy = "end other work on its device, and compare its samples with those of other ranks"
    clock = _slow_clock(explanation, slowest.rank)
    if clock:
        remedy = "improve its cooling or raise its power limit (nvidia-smi -q -d PERFORMANCE,POWER)"
    which = f"rank {slowest.rank} ({slowest.device})"
    text = f"waiting for {which}, the slowest in all {slowest.repetitions} repetitions{clock}"
    return _cause("waiting", text, remedy, share)


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


def _wrapper(share: Estimate, explanation: Explanation) -> Cause:
    """Work beside the plain step, and settings that make it shorter or rarer."""
    traits = explanation.configuration.traits
    if explanation.is_script:
        text = "what a rank does beside its own training (hooks, buckets, other collectives)"
        remedy = _advice([ACCUMULATION_ADVICE, "a larger batch: it is a cost per step"])
        if _accumulates(explanation):
            remedy = "remove collectives of its own, such as a loss that is averaged to log"
    elif traits.one_process and explanation.row.group_size > 1:
        text = "driving all replicas from one process, where they wait for each other"
        remedy = "try ddp, which has a process for each replica"
    else:
        text, other = "the wrapper's own work, a cost per step", traits.alternative
        remedies = _untried(explanation, "wrapper", other, implementation=other)
        remedies += _less_often(explanation, "wrapper")
        remedy = _advice([*remedies, "a larger --batch-sizes"])
    return _cause("wrapper", text, remedy, share)


def _communication(share: Estimate, explanation: Explanation) -> Cause:
    """Communication that is exposed, and what makes it faster or rarer; a script chooses its
    backend itself."""
    part: Part = "communication"
    settings, name = explanation.configuration, _known_faster_backend(explanation)
    text, rarer = f"exposed {part} on {settings.backend}", _less_often(explanation, part)
    words, options = name and option_words("backends", name), {}
    if settings.traits.one_process:
        text = "gathering gradients in one process"
        return _cause(part, text, _advice(["ddp", *rarer]), share)
    if settings.traits.averages_parameters:
        text = f"exposed averaging of parameters on {settings.backend}"
    if explanation.is_script:
        text, rarer = f"exposed {part}", [ACCUMULATION_ADVICE, "a larger batch"]
        if _accumulates(explanation):
            rarer = ["a larger batch or more micro-steps per optimizer step"]
        imports = "import dpbench.parallel and " if name == "shm" else ""
        words = name and f'{imports}init_process_group("{name}")'
        if name and replace(settings, backend=name) not in explanation.breakdowns:
            options = {"backends": ("gloo", name)}
    faster = _untried(explanation, part, words, backend=name)
    return _cause(part, text, _advice([*faster, *rarer]), share, options=options)


def _accumulates(explanation: Explanation) -> bool:
    """Whether ranks of a script take several forward passes per optimizer step."""
    facts = explanation.script_facts
    return bool(facts) and fmean(one.forwards / one.steps for one in facts) >= SEVERAL_FORWARDS


def _less_often(explanation: Explanation, part: Part) -> list[str]:
    """The setting that averages gradients, or parameters, less often, if it is untried."""
    settings = explanation.configuration
    option = "sync_every" if settings.traits.averages_parameters else "accumulate"
    steps = LESS_OFTEN_FACTOR * getattr(settings, option)
    words = option_words(option, steps)
    return _untried(explanation, part, words, expected=QUARTER_LEFT, **{option: steps})


def _known_faster_backend(explanation: Explanation) -> str:
    """The backend that is known to be faster than that of a row on its devices, or ""."""
    settings = explanation.configuration
    classes = {record.facts.group_class for record in explanation.row.records}
    is_on_gloo = settings.backend == "gloo" or classes == {"ProcessGroupGloo"}
    if settings.devices[0] != "cpu":
        return "nccl" if is_on_gloo or settings.backend == "shm" else ""
    return "shm" if is_on_gloo and settings.node_count == 1 else ""


def _untried(
    explanation: Explanation, part: Part, words: str | None, *, expected: str = "", **change: Any
) -> list[str]:
    """A change of settings in `words`, with its `expected` effect; one that the sweep has measured
    only if a part of the step loses less there. Empty without words."""
    if not words:
        return []
    measured = explanation.breakdowns.get(replace(explanation.configuration, **change))
    if measured is None:
        return [f"{words}{expected}"]
    # Whole steps differ less clearly: they include all disturbances that backends share.
    mine, theirs = explanation.breakdown.factor_of(part), measured.factor_of(part)
    is_less = mine and theirs and theirs.value.ends[0] > mine.value.ends[1]
    return [f"{words}, which reduces it in this sweep"] if is_less else []


def _advice(remedies: Sequence[str]) -> str:
    """The remedies in one sentence, or that there are none."""
    return f"try {', or '.join(remedies)}" if remedies else "no setting helps that this sweep lacks"

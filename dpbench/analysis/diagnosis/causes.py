"""Causes of what is slow or wrong in training, as rules find them; `report.causes` words them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, NamedTuple

from dpbench.analysis.diagnosis.factors import Factor, Part, is_large_loss
from dpbench.analysis.estimate import Estimate, mean
from dpbench.analysis.throughput import after_first_segment, slow_steps
from dpbench.records.trial import Window

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
SETTINGS = {"backends": "backend", "implementations": "implementation"}
"""Fields of a Configuration whose options have other names."""


class Effect(Enum):
    """What a cause does to training, in the order in which causes are listed: it makes it wrong, at
    any speed; costs its share of each step; is a part of a loss, so that its share is the most that
    it can cost; costs its share, or perhaps next to nothing (8 ± 8 %); or is a fact whose cost was
    not measured."""

    WRONG = auto()
    LOSS = auto()
    BOUND = auto()
    POSSIBLE_LOSS = auto()
    FACT = auto()

    @property
    def is_loss(self) -> bool:
        """Whether it was concluded from its share of a step alone."""
        return self in (Effect.LOSS, Effect.POSSIBLE_LOSS)


class OptionChange(NamedTuple):
    """A value of an option of `dpbench sweep` that may reduce a loss."""

    option: str
    now: object
    value: object
    is_measured: bool = False
    """Whether the sweep has it, and loses less there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cause:
    """Something that makes a configuration slow, or wrong."""

    kind: str
    case: str = ""
    """The case of its kind, where words differ by it: "slow rank"."""
    effect: Effect
    share: Estimate | None = None
    """Share of the step's seconds; None if it was not measured."""
    parts: tuple[Part, ...] = ()
    """Parts of a step whose losses it makes, or is a part of."""
    changes: tuple[OptionChange, ...] = ()
    """What to try, without what the sweep has tried in vain."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Numbers and names that its words have."""

    @property
    def order(self) -> tuple[int, float]:
        """What is wrong comes first, then the largest loss; last what was not measured."""
        listed_as = Effect.LOSS if self.effect is Effect.BOUND else self.effect
        return listed_as.value, -self.share.value if self.share else 0.0


Rule = Callable[["Explanation"], Iterator[Cause]]


def find_causes(explanation: Explanation) -> tuple[Cause, ...]:
    """The causes that make a configuration slow or wrong, in their order.

    A factor is blamed if its share is surely above 0 or its ratio surely below 1, and it costs 5 %
    of the step or more, even where the speed is too noisy to state; each is tested singly, without
    a correction for their number. None is blamed with a single repetition, with slow first steps,
    which are in all of them, or where the row scales linearly. Of one replica in a sweep of
    several, only slow steps are named. Where load spoils the speeds, facts are named, without their
    shares.
    """
    rules: list[Rule] = [_slow_steps]
    is_alone = explanation.row.group_size == 1
    if not (is_alone and any(other.group_size > 1 for other in explanation.breakdowns)):
        rules += RULES
        if explanation.is_spoiled or not explanation.is_linear:
            rules += RULES_OF_LOSSES
    causes = [cause for rule in rules for cause in rule(explanation)]
    if explanation.is_spoiled:
        # What was not concluded from a share is so at any speed.
        causes = [replace(cause, share=None) for cause in causes if not cause.effect.is_loss]
    return tuple(sorted(causes, key=lambda cause: cause.order))


def _cause(kind: str, share: Estimate | None = None, **fields: Any) -> Cause:
    """A loss if its share was measured, or else a fact, unless its effect is one of the fields."""
    effect = Effect.FACT
    if share is not None:
        effect = Effect.LOSS if share.ends[0] >= SURE_SHARE else Effect.POSSIBLE_LOSS
    values = {"effect": effect, **fields}
    return Cause(kind=kind, share=share, **values)


def _bound(kind: str, factor: Factor | None, most: float = 1.0, **facts: Any) -> Cause:
    """A part of a factor's loss, at `most` this fraction of it; a fact without the factor."""
    if factor is None:
        return _cause(kind, facts=facts)
    share = factor.share.scaled(most, unit="of the step")
    return _cause(kind, share, effect=Effect.BOUND, parts=factor.parts, facts=facts)


def _slow_steps(explanation: Explanation) -> Iterator[Cause]:
    """Steps that take far longer than the others, if they cost much."""
    row = explanation.row
    slow = slow_steps(row.records, row.warm_up.steps if row.warm_up else 0)
    if slow is not None and is_large_loss(slow.share):
        case = "under load" if row.is_under_load else ""
        parts = "contention", "wrapper", "waiting"
        facts = {"interval": slow.interval, "extra_seconds": slow.extra_seconds}
        yield _cause("slow steps", slow.share, case=case, parts=parts, facts=facts)


def _slow_first_steps(explanation: Explanation) -> Iterator[Cause]:
    """Steps that the warm-up should have had."""
    first, now = explanation.row.warm_up, explanation.configuration.warmup
    if first is not None and explanation.has_slow_first_steps:
        change = OptionChange("warmup", now, now + first.steps)
        yield _cause("warm-up", first.share, facts={"first": first.steps}, changes=(change,))


def _loading(explanation: Explanation) -> Iterator[Cause]:
    """A loader that is as slow in `single` costs no efficiency, and still costs time."""
    if explanation.phases is None or not is_large_loss(explanation.phases.data_share):
        return
    settings = explanation.configuration
    workers, prefetch = settings.data_workers, settings.prefetch
    changes: tuple[OptionChange, ...] = (OptionChange("data_workers", workers, 2 * (workers or 1)),)
    if not (workers or prefetch):
        changes = (OptionChange("prefetch", prefetch, 2), *changes)
    wanted: dict[str, Any] = {change.option: change.value for change in changes}
    if replace(settings, **wanted) in explanation.breakdowns:
        changes = ()
    yield _cause("data", explanation.phases.data_share, changes=changes)


def _differing_replicas(explanation: Explanation) -> Iterator[Cause]:
    """Ranks that do not train one model."""
    ranks = explanation.script_facts
    names = [rank.differing_parameter for rank in ranks if rank.differing_parameter is not None]
    if names:
        is_wrapped = any(rank.is_wrapped for rank in ranks)
        kind = "replicas differ" if is_wrapped else "never synchronized"
        yield _cause(kind, effect=Effect.WRONG, facts={"parameter": names[0]})


def _same_samples(explanation: Explanation) -> Iterator[Cause]:
    """Ranks that train one model, all on the same samples."""
    ranks = explanation.script_facts
    if any(rank.is_wrapped for rank in ranks) and any(rank.same_samples for rank in ranks):
        yield _cause("same samples", effect=Effect.WRONG)


def _shared_gpu(explanation: Explanation) -> Iterator[Cause]:
    """Ranks that share one GPU where each was given its own."""
    ranks, devices = explanation.row.records[0].ranks, {*explanation.configuration.devices}
    gpus = {rank.gpu for rank in explanation.script_facts if rank.gpu}
    if gpus and len(gpus) < len(devices):
        facts = {"ranks": len(ranks), "gpus": len(gpus), "devices": len(devices)}
        yield _cause("shared gpu", facts=facts)


def _threads(explanation: Explanation) -> Iterator[Cause]:
    """Too many threads on a CPU, or one where cores are idle."""
    record, cores = explanation.row.records[0], explanation.cores
    ranks, threads = len(record.ranks), max(rank.threads or 0 for rank in record.ranks)
    most = max(1, cores // ranks)
    case, changes = "", tuple[OptionChange, ...]()
    if threads > 1 and ranks * threads > cores > 0:
        case = "too many"
    elif threads == 1 and "cpu" in explanation.configuration.devices and most > 1:
        case, changes = "idle cores", (OptionChange("threads", 1, most),)
    if case and explanation.script_facts:
        facts = {"ranks": ranks, "threads": threads, "cores": cores, "most": most}
        yield _cause("threads", case=case, facts=facts, changes=changes)


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
    if not (steps and explanation.script_facts) or explanation.has_slow_first_steps:
        return
    share = mean([1 - kept / as_is for as_is, kept in steps], unit="of the step")
    if share.value >= MIN_INPUT_SHARE and is_large_loss(share):
        as_is, kept = map(fmean, zip(*steps, strict=True))
        facts = {"step_seconds": as_is, "cached_seconds": kept}
        cause = _cause("input pipeline", share, facts=facts)
        yield _with_faster_input(cause, explanation)


def _with_faster_input(cause: Cause, explanation: Explanation) -> Cause:
    """The cause with what makes the input pipeline of a script faster: more workers, unless the
    sweep has those, or ranks and workers fill the cores."""
    script, ranks = explanation.script_facts[0], explanation.row.records[0].ranks
    settings, workers = explanation.configuration, script.loader_workers or 0
    alike = [
        other.data_workers or 0
        for other in explanation.breakdowns
        if replace(other, data_workers=settings.data_workers) == settings
    ]
    if measured := sorted(count for count in alike if count > workers):
        return replace(cause, case="measured", facts={**cause.facts, "measured": measured})
    # A rank on a GPU leaves its core to its workers most of the time.
    threads = (ranks[0].threads or 1) if settings.devices[0] == "cpu" else 0
    busy = len(ranks) * max(threads, workers + bool(threads))
    if 0 < explanation.cores <= busy:
        case = "full with workers" if workers else "full"
        facts = {**cause.facts, "ranks": len(ranks), "cores": explanation.cores}
        return replace(cause, case=case, facts=facts)
    loader: dict[str, object] = {"num_workers": max(2, 2 * workers)}
    if not script.keeps_workers:
        loader["persistent_workers"] = True
    if script.gpu is not None and not script.pins_memory:
        loader["pin_memory"] = True
    change = OptionChange("data_workers", workers, loader["num_workers"])
    facts = {**cause.facts, "loader": loader, "workers": workers}
    return replace(cause, facts=facts, changes=(change,))


def _sync_batch_norm(explanation: Explanation) -> Iterator[Cause]:
    """Layers that communicate in each forward pass, also without synchronization."""
    layers = max(record.facts.sync_batch_norms for record in explanation.row.records)
    if layers and explanation.trains_together:
        wrapper = explanation.breakdown.factor_of("wrapper")
        yield _bound("sync batch norm", wrapper, layers=layers)


def _reductions(explanation: Explanation) -> Iterator[Cause]:
    """Gradients that are averaged more than once in an optimizer step."""
    counts = [rank.reducing_forwards / rank.steps for rank in explanation.script_facts]
    per_step = fmean(counts or [0])
    if per_step >= SEVERAL_FORWARDS:
        communication = explanation.breakdown.factor_of("communication")
        yield _bound("reductions", communication, 1 - 1 / per_step, per_step=per_step)


def _find_unused(explanation: Explanation) -> Iterator[Cause]:
    """A search of DistributedDataParallel for parameters that are never there."""
    searches = [rank.finds_unused and not rank.has_unused for rank in explanation.script_facts]
    if searches and all(searches):
        yield _cause("find unused", changes=(OptionChange("find_unused", "auto", "off"),))


def _losses(explanation: Explanation) -> Iterator[Cause]:
    """The large losses among the factors, except those that a gain makes up for, those of which a
    more concrete cause makes the larger part, and waiting as any script has it."""
    if explanation.has_slow_first_steps:
        return
    is_even_script = explanation.is_script and explanation.slow_rank is None
    ordinary = ORDINARY_WAITING_SHARE if is_even_script else 0.0
    offset = [loss for loss, _ in explanation.offset_losses]
    rules = (_slow_steps, _sync_batch_norm, _reductions)
    concrete = [cause for rule in rules for cause in rule(explanation)]
    for factor in explanation.breakdown.factors:
        parts, least = {*factor.parts}, EXPLAINING_SHARE * factor.share.value
        shares = [one.share for one in concrete if one.share and parts <= {*one.parts}]
        is_explained = any(share.value >= least for share in shares)
        is_ordinary = "waiting" in parts and factor.share.value < ordinary
        if factor.is_large_loss and not (is_ordinary or is_explained or factor in offset):
            yield _loss(factor, explanation)


RULES: Sequence[Rule] = (
    _slow_first_steps,
    _loading,
    _differing_replicas,
    _same_samples,
    _shared_gpu,
    _threads,
    _input_pipeline,
)
RULES_OF_LOSSES: Sequence[Rule] = (_sync_batch_norm, _reductions, _find_unused, _losses)
"""Rules for what makes a row scale less than linearly."""


def _loss(factor: Factor, explanation: Explanation) -> Cause:
    """The loss of a factor, with what may reduce it, by its part."""
    settings, parts = explanation.configuration, factor.parts
    case, changes = "", tuple[OptionChange, ...]()
    facts: dict[str, Any] = {"names": parts}
    match parts:
        case ("contention",):
            case = "cpu" if settings.devices[0] == "cpu" else ""
            facts["copies"] = settings.group_size
        case ("waiting",):
            case, facts = _waiting(explanation)
        case ("wrapper",) | ("wrapper", "waiting") | ("communication",):
            case, changes = _averaging(explanation, parts[0])
            facts["backend"] = settings.backend
    # The one clock of a process that drives all replicas has both parts.
    is_one = len(parts) == 1 or parts == ("wrapper", "waiting")
    kind = parts[0] if is_one else "not separated"
    return _cause(kind, factor.share, case=case, parts=parts, facts=facts, changes=changes)


def _waiting(explanation: Explanation) -> tuple[str, dict[str, Any]]:
    """Who is waited for, and facts about it: the slower copies, one slow rank, whose GPU may have a
    slow clock, or now one rank and now another."""
    slow = explanation.slow_rank
    if not explanation.communicates:
        return "copies", {}
    if slow is None:
        return "", {}
    facts = {"rank": slow.rank, "device": slow.device, "repetitions": slow.repetitions}
    ranks = explanation.row.ranks
    own = [state for one in ranks if one.rank == slow.rank for state in one.timed.gpu]
    others = [state for one in ranks if one.rank != slow.rank for state in one.timed.gpu]
    if not (own and others):
        return "slow rank", facts
    own_mhz, others_mhz = (median(state.sm_clock_mhz for state in some) for some in (own, others))
    if own_mhz > SLOW_CLOCK_SHARE * others_mhz:
        return "slow rank", facts
    slowdowns = [*dict.fromkeys(reason for state in own for reason in state.slowdowns)]
    clocks = {"own_mhz": own_mhz, "others_mhz": others_mhz, "slowdowns": slowdowns}
    return "slow clock", facts | clocks


def _averaging(explanation: Explanation, part: Part) -> tuple[str, tuple[OptionChange, ...]]:
    """How replicas become one model, and changes that make a part of it faster or rarer; a script
    does that itself, and its backend can be changed."""
    settings, traits = explanation.configuration, explanation.configuration.traits
    if explanation.is_script:
        forwards = [rank.forwards / rank.steps for rank in explanation.script_facts]
        accumulates = fmean(forwards or [0]) >= SEVERAL_FORWARDS
        case = "script that accumulates" if accumulates else "script"
        return case, _faster_backend(explanation) if part == "communication" else ()
    case = "parameters" if traits.averages_parameters else ""
    option = "sync_every" if traits.averages_parameters else "accumulate"
    now, name = getattr(settings, option), settings.implementation
    less_often = _untried(explanation, part, option, now, LESS_OFTEN_FACTOR * now)
    if traits.one_process and explanation.row.group_size > 1:
        return "one process", (*_processes(explanation), *less_often)
    if part == "communication":
        return case, (*_faster_backend(explanation), *less_often)
    other = _untried(explanation, part, "implementations", name, traits.alternative)
    return case, (*other, *less_often)


def _processes(explanation: Explanation) -> tuple[OptionChange, ...]:
    """A process for each replica in the place of one for all, unless that was measured, and is not
    faster."""
    settings, mine = explanation.configuration, explanation.breakdown.step_seconds
    alike: dict[str, Any] = {"implementation": settings.implementation, "backend": settings.backend}
    measured = [
        breakdown.step_seconds
        for other, breakdown in explanation.breakdowns.items()
        if other.implementation == "ddp" and replace(other, **alike) == settings
    ]
    is_faster = any(seconds.ends[1] < mine.ends[0] for seconds in measured)
    if measured and not is_faster:
        return ()
    name = settings.implementation
    return (OptionChange("implementations", name, "ddp", is_measured=is_faster),)


def _faster_backend(explanation: Explanation) -> tuple[OptionChange, ...]:
    """The backend that is known to be faster than that of a row on its devices, if it is
    untried."""
    settings, faster = explanation.configuration, None
    classes = {record.facts.group_class for record in explanation.row.records}
    used = "gloo" if classes == {"ProcessGroupGloo"} else settings.backend
    if settings.devices[0] != "cpu" and used in ("gloo", "shm"):
        faster = "nccl"
    elif settings.devices[0] == "cpu" and used == "gloo" and settings.node_count == 1:
        faster = "shm"
    return _untried(explanation, "communication", "backends", used, faster)


def _untried(
    explanation: Explanation, part: Part, option: str, now: object, value: object
) -> tuple[OptionChange, ...]:
    """The change of an option from its value now; none to None, or to what the sweep has measured,
    unless a part of the step loses less there."""
    if value is None:
        return ()
    settings: dict[str, Any] = {SETTINGS.get(option, option): value}
    measured = explanation.breakdowns.get(replace(explanation.configuration, **settings))
    if measured is None:
        return (OptionChange(option, now, value),)
    # Whole steps differ less clearly: they include all disturbances that backends share.
    mine, theirs = explanation.breakdown.factor_of(part), measured.factor_of(part)
    is_less = mine and theirs and theirs.value.ends[0] > mine.value.ends[1]
    return (OptionChange(option, now, value, is_measured=True),) if is_less else ()

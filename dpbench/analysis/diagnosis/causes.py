"""Causes of what is slow or wrong in training: each rule finds one kind, and says what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from statistics import fmean, median

from dpbench import units
from dpbench.analysis.diagnosis.explanation import (
    Alternative,
    Cause,
    Explanation,
    SlowestRank,
    slowest_of,
)
from dpbench.analysis.diagnosis.factors import (
    Factor,
    Part,
    break_down,
    is_large_loss,
    trials_by_key,
)
from dpbench.analysis.diagnosis.phases import step_phases
from dpbench.analysis.estimate import mean
from dpbench.analysis.formatting import percent
from dpbench.analysis.noise import FREE_THE_MACHINE, machine_load
from dpbench.analysis.resources import KEEP_MEMORY, costly_page_faults
from dpbench.analysis.rows import Row
from dpbench.analysis.throughput import after_first_segment, slow_steps
from dpbench.data.registry import DATASETS
from dpbench.messages import as_typed
from dpbench.records.trial import Mode, TrialRecord
from dpbench.specs.traits import BACKENDS, backend_conflict

MIN_INPUT_SHARE = 0.1
"""Smallest share of a step at which the input pipeline is named: loading in the training process
costs a few percent of short steps in any script."""
COMPUTING_SHARE = 0.8
"""Ranks leave time of their cores to workers if they compute for less than this share of it, such
as those whose loader waits for files."""
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
ACCUMULATION = (
    f"accumulate gradients over {LESS_OFTEN_FACTOR} micro-steps with no_sync(){QUARTER_LEFT}"
)
CHEAPER_INPUT = "make its transforms cheaper, cache their output or run them before training"
NO_FACTOR = "which slows a single rank as much and so is no factor of efficiency"


def explain_rows(rows: Sequence[Row]) -> tuple[Explanation, ...]:
    """Explain all rows of a sweep that have a speed, except `single` and one `independent` copy,
    which equals it; `rows` include those two, as references."""
    records = [record for row in rows for record in row.usable_records]
    references = trials_by_key(records)
    is_spoiled = machine_load(records).spoils_speeds
    breakdowns = {
        row.configuration: break_down(row.usable_records, references)
        for row in rows
        if row.configuration and row.usable_records
        if row.group_size > 1 or row.configuration.traits.communicates
    }
    explanations = [
        Explanation(row=row, breakdowns=breakdowns, is_spoiled=is_spoiled)
        for row in rows
        if row.configuration in breakdowns
    ]
    return tuple(replace(each, causes=find_causes(each)) for each in explanations)


def find_causes(explanation: Explanation) -> tuple[Cause, ...]:
    """The causes that make a configuration slow or wrong, in their order.

    A factor is blamed if its share is surely above 0 or its ratio surely below 1, and it costs 5 %
    of the step or more, even where the speed is too noisy to state; each is tested singly, without
    a correction for their number. None is blamed with a single repetition, with slow first steps,
    which are in all of them, or where the row scales linearly. Of one replica in a sweep of
    several, only slow steps are named. Where load spoils the speeds, facts are named, without their
    shares.
    """
    largest_group = max(other.group_size for other in explanation.breakdowns)
    # One replica in a sweep of several is there to compare with.
    is_baseline = explanation.row.group_size == 1 and largest_group > 1
    rules: list[Callable[[Explanation], Iterator[Cause]]] = [_slow_steps]
    if not is_baseline:
        rules += [_slow_first_steps, _loading, _differing_replicas, _same_samples, _shared_gpu]
        rules += [_threads, _input_pipeline, _page_faults]
        if explanation.is_spoiled or not explanation.is_linear:
            rules += [_sync_batch_norm, _reductions, _find_unused, _losses]
    causes = list[Cause]()
    for rule in rules:  # a loss comes after what may explain it
        causes += [cause for cause in rule(explanation) if not _is_explained(cause, causes)]
    if explanation.is_spoiled:
        # What was not concluded from a share is so at any speed.
        causes = [cause for cause in causes if cause.standing != "loss"]
    useful = [replace(cause, advice=(*_useful(cause, explanation),)) for cause in causes]
    return tuple(sorted(useful, key=lambda cause: cause.order))


def _is_explained(loss: Cause, causes: Sequence[Cause]) -> bool:
    """Whether one of more concrete causes makes the larger part of a loss."""
    if loss.standing != "loss" or loss.share is None or not loss.parts:
        return False
    least = EXPLAINING_SHARE * loss.share.value
    others = [cause for cause in causes if {*loss.parts} <= {*cause.parts}]
    return any(cause.share is not None and cause.share.value >= least for cause in others)


def _useful(cause: Cause, explanation: Explanation) -> Iterator[Alternative | str]:
    """The advice on a cause without alternatives that cannot run, or that the sweep has and that
    reduce nothing there; one that reduces the loss in the sweep is in words."""
    settings, now = explanation.configuration, explanation.breakdown
    for each in cause.advice:
        if isinstance(each, str):
            yield each
            continue
        changed = each.applied_to(settings)
        devices = [*map(changed.device_name, range(changed.group_size))]
        if changed.unusable_reason or backend_conflict(changed.backend, devices):
            continue
        # A process for each replica may have any backend, and its step has other parts.
        is_split = changed.process_count > settings.process_count
        part = None if is_split else next(iter(cause.parts), None)
        measured = [
            breakdown
            for other, breakdown in explanation.breakdowns.items()
            if changed == (replace(other, backend=changed.backend) if is_split else other)
        ]
        if not measured:
            yield each
        elif any(breakdown.loses_less_than(now, part) for breakdown in measured):
            yield f"{each} (better in this sweep)"


def _slow_steps(explanation: Explanation) -> Iterator[Cause]:
    """Steps that take far longer than the others, if they cost much."""
    row = explanation.row
    slow = slow_steps(row.usable_records, row.warm_up.steps if row.warm_up else 0)
    if slow is None or not is_large_loss(slow.share):
        return
    extra = _two_digits(slow.extra_seconds)
    remedy = (
        "find what runs now and then, such as garbage collection (gc.freeze() after the warm-up) "
        "or logging; dpbench.load(DIR).steps has the time of each step"
    )
    yield Cause(
        kind="slow steps",
        text=f"rare slow steps (1 in {slow.interval:.0f}, {extra} longer than the others)",
        advice=(FREE_THE_MACHINE if row.is_under_load else remedy,),
        standing="loss",
        share=slow.share,
        parts=("contention", "wrapper", "waiting"),
    )


def _slow_first_steps(explanation: Explanation) -> Iterator[Cause]:
    """Steps that the warm-up should have had."""
    first = explanation.row.warm_up
    enough = explanation.row.sufficient_warmup
    if first is not None and enough is not None and explanation.has_slow_first_steps:
        both = (explanation.configuration.warmup, enough)
        yield Cause(
            kind="warm-up",
            text=f"slow first steps of the window (the first {first.steps})",
            advice=(Alternative({"warmup": both}, ", which leaves them out"),),
            standing="loss",
            share=first.share,
        )


def _loading(explanation: Explanation) -> Iterator[Cause]:
    """A loader that is as slow in `single` costs no efficiency, and still costs time."""
    phases = step_phases(explanation.row.usable_records)
    if phases is None or not is_large_loss(phases.data_share):
        return
    settings = explanation.configuration
    wanted = {"data_workers": (settings.data_workers, 2 * (settings.data_workers or 1))}
    if not (settings.data_workers or settings.prefetch):
        wanted = {"prefetch": (settings.prefetch, 2), **wanted}
    yield Cause(
        kind="data",
        text=f"loading data, {NO_FACTOR}",
        advice=(Alternative(wanted), "use cheaper transforms"),
        standing="loss",
        share=phases.data_share,
    )


def _differing_replicas(explanation: Explanation) -> Iterator[Cause]:
    """Ranks that do not train one model."""
    ranks = explanation.script_facts
    names = [rank.differing_parameter for rank in ranks if rank.differing_parameter is not None]
    if names and any(rank.is_wrapped for rank in ranks):
        yield Cause(
            kind="replicas differ",
            text=f"replicas differ, as {names[0]} is not the same on all ranks after the warm-up",
            advice=("load one checkpoint on all ranks, and change no parameter before wrapping",),
            standing="wrong",
        )
    elif names:
        yield Cause(
            kind="never synchronized",
            text=f"ranks train models of their own, as {names[0]} differs after the warm-up",
            advice=("wrap the model, model = DistributedDataParallel(model), and call that",),
            standing="wrong",
        )


def _same_samples(explanation: Explanation) -> Iterator[Cause]:
    """Ranks that train one model, all on the same samples."""
    ranks = explanation.script_facts
    if any(rank.is_wrapped for rank in ranks) and any(rank.same_samples for rank in ranks):
        remedy = (
            "use DataLoader(…, sampler=DistributedSampler(dataset)), and call "
            "sampler.set_epoch(epoch) before each epoch"
        )
        yield Cause(
            kind="same samples",
            text="all ranks train on the same samples, as their batches are equal",
            advice=(remedy,),
            standing="wrong",
        )


def _shared_gpu(explanation: Explanation) -> Iterator[Cause]:
    """Ranks that share one GPU where each was given its own."""
    devices = {*explanation.configuration.devices}
    gpus = {rank.gpu for rank in explanation.script_facts if rank.gpu}
    if gpus and len(gpus) < len(devices):
        ranks = units.counted(len(explanation.row.usable_records[0].ranks), "rank")
        used = units.counted(len(gpus), "GPU")
        text = f"the parameters of {ranks} are on {used} instead of {len(devices)}"
        remedy = (
            'call torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) before the model is made'
        )
        yield Cause(kind="shared gpu", text=text, advice=(remedy,))


def _threads(explanation: Explanation) -> Iterator[Cause]:
    """Too many threads on a CPU, or one where cores are idle."""
    if not explanation.script_facts:
        return
    cores = explanation.cores
    ranks = explanation.row.usable_records[0].ranks
    threads = max(rank.threads or 0 for rank in ranks)
    most = max(1, cores // len(ranks))
    of_each = f"{units.counted(threads, 'thread')} each, on {units.counted(cores, 'core')}"
    text = f"{units.counted(len(ranks), 'rank')} compute with {of_each}"
    if threads > 1 and len(ranks) * threads > cores > 0:
        remedy = f"call torch.set_num_threads({most}), or remove that call and use --threads {most}"
        yield Cause(kind="threads", text=text, advice=(remedy,))
        return
    is_measured = any(other.threads == most for other in explanation.breakdowns)
    if threads == 1 < most and "cpu" in explanation.configuration.devices and not is_measured:
        advice = (f"set OMP_NUM_THREADS={most}", Alternative({"threads": (1, most)}))
        yield Cause(kind="threads", text=text, advice=advice)


def _input_pipeline(explanation: Explanation) -> Iterator[Cause]:
    """Steps as they are against those on a batch that stays in memory, from the second segment on.
    A slow input pipeline costs one rank as much, so it is a loss of time and not one of scaling."""

    def slowest(record: TrialRecord, mode: Mode) -> float:
        windows = [after_first_segment(rank.windows[mode]) for rank in record.ranks]
        return max(window.mean_step_seconds for window in windows)

    records = explanation.row.usable_records
    measured = [r for r in records if all("cached" in rank.windows for rank in r.ranks)]
    if not (measured and explanation.script_facts) or explanation.has_slow_first_steps:
        return
    as_is = [slowest(record, "timed") for record in measured]
    cached = [slowest(record, "cached") for record in measured]
    lost = [1 - kept / whole for whole, kept in zip(as_is, cached, strict=True)]
    share = mean(lost, unit="of the step")
    if share.value < MIN_INPUT_SHARE or share.interval is None:
        return
    if not is_large_loss(share):
        text = f"the input pipeline, up to {percent(share.ends[1])} of the step, which noise hides"
        remedy = "measure on a free machine, or with more --repetitions"
        yield Cause(kind="input pipeline", text=text, advice=(remedy,))
        return
    step, without = _two_digits(fmean(as_is)), _two_digits(fmean(cached))
    yield Cause(
        kind="input pipeline",
        text=f"the input pipeline, {NO_FACTOR}: a step takes {step}, and {without} with the batch "
        "kept in memory",
        advice=_faster_input(explanation),
        standing="loss",
        share=share,
    )


def _faster_input(explanation: Explanation) -> tuple[Alternative | str, ...]:
    """What makes the input pipeline of a script faster: more workers, unless the sweep has those,
    or ranks and workers fill the cores."""
    script = explanation.script_facts[0]
    workers = script.loader_workers or 0
    ranks = explanation.row.usable_records[0].ranks
    settings = explanation.configuration
    alike = [
        other.data_workers or 0
        for other in explanation.breakdowns
        if replace(other, data_workers=settings.data_workers) == settings
    ]
    if measured := sorted(count for count in alike if count > workers):
        return (f"{CHEAPER_INPUT}; num_workers={as_typed(measured)} was measured, too",)
    # A rank on a GPU leaves its core to its workers most of the time.
    threads = (ranks[0].threads or 1) if settings.devices[0] == "cpu" else 0
    busy = len(ranks) * max(threads, workers + bool(threads))
    computing = sum(rank.timed.cpu_seconds or rank.timed.seconds for rank in ranks)
    is_idle = computing < COMPUTING_SHARE * sum(rank.timed.seconds for rank in ranks)
    if 0 < explanation.cores <= busy and not (threads == 1 and is_idle):
        who = units.counted(len(ranks), "rank") + " with their workers" * bool(workers)
        full = f"{who} already fill {units.counted(explanation.cores, 'core')}"
        return CHEAPER_INPUT, f"use fewer ranks; more num_workers would not help, as {full}"
    more = max(2, 2 * workers)
    arguments = [f"num_workers={more}"]
    if not script.keeps_workers:
        arguments.append("persistent_workers=True")
    if script.gpu is not None and not script.pins_memory:
        arguments.append("pin_memory=True")
    call = f", or in the script DataLoader({', '.join(arguments)}) (now num_workers={workers})"
    return (Alternative({"data_workers": (workers, more)}, call),)


def _page_faults(explanation: Explanation) -> Iterator[Cause]:
    """Memory that is mapped anew in every step on the CPU."""
    for count in costly_page_faults([explanation.row.usable_records]):
        yield Cause(
            kind="page faults",
            text=f"{count:,} page faults in each step, as glibc returns freed memory to the system",
            advice=(f"put {KEEP_MEMORY} before the command that trains", "use jemalloc"),
        )


def _sync_batch_norm(explanation: Explanation) -> Iterator[Cause]:
    """Layers that communicate in each forward pass, also without synchronization."""
    layers = max(record.facts.sync_batch_norms for record in explanation.row.usable_records)
    if layers and explanation.trains_together:
        cause = Cause(
            kind="sync batch norm",
            text=f"SyncBatchNorm ({units.counted(layers, 'layer')}), which communicates in every "
            "forward pass, with and without averaging of gradients",
            advice=("use GroupNorm, or BatchNorm with a larger batch per rank: both stay local",),
        )
        yield _as_part_of_loss(cause, explanation, "wrapper")


def _reductions(explanation: Explanation) -> Iterator[Cause]:
    """Gradients that are averaged more than once in an optimizer step."""
    counts = [rank.reducing_forwards / rank.steps for rank in explanation.script_facts]
    times = fmean(counts or [0])
    if times >= SEVERAL_FORWARDS:
        cause = Cause(
            kind="reductions",
            text=f"averaging gradients {times:.3g} times per optimizer step instead of once",
            advice=("put all micro-steps but the last, forward and backward, in model.no_sync()",),
        )
        yield _as_part_of_loss(cause, explanation, "communication", most=1 - 1 / times)


def _as_part_of_loss(
    cause: Cause, explanation: Explanation, part: Part, *, most: float = 1.0
) -> Cause:
    """A cause that makes at `most` this fraction of what a part of the step costs, if that is
    known."""
    factor = explanation.breakdown.factor_of(part)
    if factor is None or explanation.is_spoiled:
        return cause
    share = factor.share.scaled(most, unit=factor.share.unit)
    return replace(cause, standing="part of a loss", share=share, parts=factor.parts)


def _find_unused(explanation: Explanation) -> Iterator[Cause]:
    """A search of DistributedDataParallel for parameters that are never there."""
    searches = [rank.finds_unused and not rank.has_unused for rank in explanation.script_facts]
    if searches and all(searches):
        off = Alternative({"find_unused": (explanation.configuration.find_unused, "off")})
        yield Cause(
            kind="find unused",
            text="the search for unused parameters in every step, although all had a gradient",
            advice=("leave find_unused_parameters=True out of DistributedDataParallel(…)", off),
        )


def _losses(explanation: Explanation) -> Iterator[Cause]:
    """The large losses among the factors, except those that a gain makes up for, and waiting as
    any script has it."""
    if explanation.has_slow_first_steps:
        return
    breakdown = explanation.breakdown
    offset = [loss for loss, _ in breakdown.offset_losses]
    for factor in breakdown.factors:
        is_small_wait = "waiting" in factor.parts and factor.share.value < ORDINARY_WAITING_SHARE
        is_ordinary = is_small_wait and explanation.is_script and _slow_rank(explanation) is None
        if factor.is_large_loss and not (is_ordinary or factor in offset):
            loss = _cause_of_loss(factor, explanation)
            yield replace(loss, standing="loss", share=factor.share, parts=factor.parts)


def _cause_of_loss(factor: Factor, explanation: Explanation) -> Cause:
    """What a loss is, by the parts of its factor, and what may reduce it."""
    settings, part = explanation.configuration, factor.parts[0]
    match factor.parts:
        case ("granularity",):
            text = "granularity, as a small shard takes longer per sample"
            remedy = "try larger --batch-sizes or fewer replicas"
        case ("contention",):
            copies = settings.group_size
            text = f"contention, as {copies} copies slow each other without communicating"
            remedy = "try fewer replicas per host, as they share power, PCIe and its cores"
            if settings.devices[0] == "cpu":
                remedy = "no setting removes it, as they share cores and memory bandwidth"
        case ("waiting",):
            text, remedy = _waiting(explanation)
        # The one clock of a process that drives all replicas has both parts.
        case ("wrapper",) | ("wrapper", "waiting") | ("communication",):
            averaging = _averaging_by_script if explanation.is_script else _averaging
            return averaging(explanation, part)
        case parts:
            remedy = "measure what separates them, see the table"
            return Cause(kind="not separated", text=" or ".join(parts), advice=(remedy,))
    return Cause(kind=part, text=text, advice=(remedy,))


def _slow_rank(explanation: Explanation) -> SlowestRank | None:
    """The rank that the others wait for; None if none is surely slower."""
    slowest = slowest_of(explanation.row.usable_records)
    return slowest if slowest and slowest.is_slow else None


def _waiting(explanation: Explanation) -> tuple[str, str]:
    """Who is waited for, and what to do: the slower copies, one slow rank, whose GPU may have a
    slow clock, or now one rank and now another."""
    if not explanation.configuration.traits.communicates:
        return "copies that are slower than the typical one", "end other work on their devices"
    # Samples of dpbench's own datasets are equally long.
    may_differ = explanation.configuration.workload.dataset not in DATASETS
    slow = _slow_rank(explanation)
    if slow is None:
        text = "waiting for the rank that is slowest in each step, not always the same one"
        remedy = "end other work on the devices, or pin ranks to cores"
        return text, f"make samples equally long, {remedy}" if may_differ else remedy
    named = f"rank {slow.rank} ({slow.device}), the slowest in all {slow.repetitions} repetitions"
    ranks = explanation.row.ranks
    own = [state for rank in ranks if rank.rank == slow.rank for state in rank.timed.gpu]
    others = [state for rank in ranks if rank.rank != slow.rank for state in rank.timed.gpu]
    text = f"waiting for {named}"
    remedy = "end other work on its device"
    remedy += ", and compare its samples with those of other ranks" * may_differ
    if own and others:
        mhz = median(state.sm_clock_mhz for state in own)
        usual = median(state.sm_clock_mhz for state in others)
        if mhz <= SLOW_CLOCK_SHARE * usual:
            text += f", with an SM clock of {mhz:,.0f} MHz against {usual:,.0f}"
            if slowdowns := dict.fromkeys(reason for state in own for reason in state.slowdowns):
                text += f" ({', '.join(slowdowns)})"
            remedy = (
                "improve its cooling or raise its power limit (nvidia-smi -q -d PERFORMANCE,POWER)"
            )
    return text, remedy


def _averaging_by_script(explanation: Explanation, part: Part) -> Cause:
    """What is slow where a script makes its replicas one model."""
    forwards = [rank.forwards / rank.steps for rank in explanation.script_facts]
    accumulates = fmean(forwards or [0]) >= SEVERAL_FORWARDS
    if part == "wrapper":
        text = "what a rank does beside its own training (hooks, buckets, other collectives)"
        if accumulates:
            remedy = "remove collectives of its own, such as a loss that is averaged to log"
            return Cause(kind=part, text=text, advice=(remedy,))
        larger = "use a larger batch: it is a cost per step"
        return Cause(kind=part, text=text, advice=(ACCUMULATION, larger))
    faster = _faster_backend(explanation)
    less_often = (ACCUMULATION, "use a larger batch")
    if accumulates:
        less_often = ("use a larger batch", "take more micro-steps per optimizer step")
    return Cause(kind=part, text="exposed communication", advice=(*faster, *less_often))


def _averaging(explanation: Explanation, part: Part) -> Cause:
    """What is slow where an implementation makes replicas one model."""
    settings, traits = explanation.configuration, explanation.configuration.traits
    setting = "sync_every" if traits.averages_parameters else "accumulate"
    now = getattr(settings, setting)
    less_often = Alternative({setting: (now, LESS_OFTEN_FACTOR * now)}, QUARTER_LEFT)
    advice: tuple[Alternative | str, ...]
    if traits.one_process and explanation.row.group_size > 1:
        text = "driving all replicas from one process, where they wait for each other"
        if part == "communication":
            text = "gathering gradients in one process"
        both = (settings.implementation, "ddp")
        split = Alternative({"implementation": both}, ", with a process for each replica")
        advice = (split, less_often)
    elif part == "communication":
        averaging = "averaging of parameters" if traits.averages_parameters else "communication"
        text = f"exposed {averaging} on {settings.backend}"
        advice = (*_faster_backend(explanation), less_often)
    else:
        text = "the wrapper's own work, a cost per step"
        advice = (less_often, "use larger --batch-sizes")
        if name := traits.alternative:
            advice = (Alternative({"implementation": (settings.implementation, name)}), *advice)
    return Cause(kind=part, text=text, advice=advice)


def _faster_backend(explanation: Explanation) -> Iterator[Alternative]:
    """The backend that is known to be faster than that of a row on its devices, if any."""
    settings = explanation.configuration
    classes = {record.facts.group_class for record in explanation.row.usable_records}
    used = "gloo" if classes == {"ProcessGroupGloo"} else settings.backend
    faster = "shm" if settings.devices[0] == "cpu" else "nccl"
    reaches_all = settings.node_count == 1 or not BACKENDS[faster].one_host
    if reaches_all and used in {"gloo", "shm"} - {faster}:
        call = f', or in the script init_process_group("{faster}")'
        call += " after import dpbench.parallel" * (faster == "shm")
        yield Alternative({"backend": (used, faster)}, call if explanation.is_script else "")


def _two_digits(seconds: float) -> str:
    return units.seconds(float(f"{seconds:.2g}"))

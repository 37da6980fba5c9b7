"""Causes in words, each with what to do about it; and why parts of a step are not separated."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from dpbench import units
from dpbench.analysis.diagnosis.causes import LESS_OFTEN_FACTOR, Cause, OptionChange
from dpbench.analysis.diagnosis.explanation import Explanation
from dpbench.analysis.diagnosis.factors import CONTENDED, IDEAL, PARTS, SHARDED
from dpbench.analysis.formatting import percent
from dpbench.analysis.noise import FREE_THE_MACHINE
from dpbench.messages import as_typed, option_words

QUARTER_LEFT = ", which leaves about a quarter of this loss"
ACCUMULATION_ADVICE = (
    f"gradient accumulation over {LESS_OFTEN_FACTOR} micro-steps with no_sync(){QUARTER_LEFT}"
)
STEP = "a step takes {step_seconds}, and {cached_seconds} with the batch kept in memory. "
CHEAPER_INPUT = f"{STEP}Make its transforms cheaper, cache their output or run them before training"
TEXTS = {
    "slow steps": "rare slow steps (1 in {interval:.0f}, {extra_seconds} longer than the others)",
    "warm-up": "slow first steps of the window (the first {first})",
    "data": "loading data, on every rank",
    "never synchronized": "ranks train models of their own, as {parameter} differs after the "
    "warm-up",
    "replicas differ": "replicas differ, as {parameter} is not the same on all ranks after the "
    "warm-up",
    "same samples": "all ranks train on the same samples, as their batches are equal",
    "shared gpu": "the parameters of {ranks} are on {gpus} instead of {devices}",
    "threads": "{ranks} compute with {threads} each, on {cores}",
    "input pipeline": "the input pipeline",
    "sync batch norm": "SyncBatchNorm ({layers}), which communicates in every forward pass, with "
    "and without averaging of gradients",
    "reductions": "averaging gradients {per_step:.3g} times per optimizer step instead of once",
    "find unused": "the search for unused parameters in every step, although all had a gradient",
    "granularity": "granularity, as a small shard takes longer per sample",
    "contention": "contention, as {copies} copies slow each other without communicating",
    "waiting": "waiting for the rank that is slowest in each step, not always the same one",
    "waiting, copies": "copies that are slower than the typical one",
    "waiting, slow rank": "waiting for rank {rank} ({device}), the slowest in all {repetitions} "
    "repetitions",
    "waiting, slow clock": "waiting for rank {rank} ({device}), the slowest in all {repetitions} "
    "repetitions, with an SM clock of {own_mhz:,.0f} MHz against {others_mhz:,.0f}{slowdowns}",
    "wrapper": "the wrapper's own work, a cost per step",
    "wrapper, one process": "driving all replicas from one process, where they wait for each other",
    "wrapper, script": "what a rank does beside its own training (hooks, buckets, other "
    "collectives)",
    "communication": "exposed communication on {backend}",
    "communication, one process": "gathering gradients in one process",
    "communication, parameters": "exposed averaging of parameters on {backend}",
    "communication, script": "exposed communication",
    "not separated": "{names}",
}
"""What is slow or wrong, by the kind of a cause, or its kind and case, with facts in braces."""
REMEDIES: dict[str, str | tuple[str, ...]] = {
    "slow steps": "find what runs now and then, such as garbage collection (gc.freeze() after the "
    "warm-up) or logging; dpbench.load(DIR).steps has the time of each step",
    "slow steps, under load": FREE_THE_MACHINE,
    "warm-up": "measure with {changes}, which leaves them out",
    "data": ("cheaper transforms",),
    "never synchronized": "wrap the model, model = DistributedDataParallel(model), and call that",
    "replicas differ": "load one checkpoint on all ranks, and change no parameter before wrapping",
    "same samples": "use DataLoader(…, sampler=DistributedSampler(dataset)), and call "
    "sampler.set_epoch(epoch) before each epoch",
    "shared gpu": 'call torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) before the model is '
    "made",
    "threads, too many": "call torch.set_num_threads({most}), or remove that call and use "
    "--threads {most}",
    "threads, idle cores": "set OMP_NUM_THREADS={most}, or try {changes}",
    "input pipeline": f"{STEP}Try DataLoader({{loader}}); this run had num_workers={{workers}}",
    "input pipeline, measured": f"{CHEAPER_INPUT}; num_workers={{measured}} was measured, too",
    "input pipeline, full": f"{CHEAPER_INPUT}, or use fewer ranks, as {{ranks}} already fill "
    "{cores}",
    "input pipeline, full with workers": f"{CHEAPER_INPUT}, or use fewer ranks, as {{ranks}} with "
    "their workers already fill {cores}",
    "sync batch norm": "use GroupNorm, or BatchNorm with a larger batch per rank: both stay local",
    "reductions": "put all micro-steps but the last, forward and backward, into model.no_sync()",
    "find unused": "leave find_unused_parameters=True out of DistributedDataParallel(…)",
    "granularity": "try a larger --batch-sizes or fewer replicas",
    "contention": "try fewer replicas per host, as they share power, PCIe and its cores",
    "contention, cpu": "no setting removes it, as they share cores and memory bandwidth",
    "waiting": "make samples equally long, end other work on the devices, or pin ranks to cores",
    "waiting, copies": "end other work on their devices",
    "waiting, slow rank": "end other work on its device, and compare its samples with those of "
    "other ranks",
    "waiting, slow clock": "improve its cooling or raise its power limit (nvidia-smi -q -d "
    "PERFORMANCE,POWER)",
    "wrapper": ("a larger --batch-sizes",),
    "wrapper, one process": (),
    "wrapper, script": (ACCUMULATION_ADVICE, "a larger batch: it is a cost per step"),
    "wrapper, script that accumulates": "remove collectives of its own, such as a loss that is "
    "averaged to log",
    "communication": (),
    "communication, script": (ACCUMULATION_ADVICE, "a larger batch"),
    "communication, script that accumulates": (
        "a larger batch or more micro-steps per optimizer step",
    ),
    "not separated": "measure what separates them, see the table",
}
"""What to do about it: a sentence, or what there is to try beside its changes."""
FACT_WRITERS: Mapping[str, Callable[[Any], str]] = {
    **{
        f"{noun}s": partial(units.counted, noun=noun)
        for noun in ("rank", "core", "thread", "layer")
    },
    "gpus": partial(units.counted, noun="GPU"),
    **dict.fromkeys(
        ("extra_seconds", "step_seconds", "cached_seconds"),
        lambda seconds: units.seconds(float(f"{seconds:.2g}")),
    ),
    "measured": as_typed,
    "slowdowns": lambda names: f" ({', '.join(names)})" if names else "",
    "loader": lambda arguments: ", ".join(f"{name}={arguments[name]}" for name in arguments),
    "names": " or ".join,
}
"""How facts that are no plain numbers or names are written."""


def words_of(cause: Cause) -> tuple[str, str]:
    """The words of a cause, and its remedy, as ("exposed communication on gloo",
    "try --backends shm")."""
    changes = [_change_words(change, cause) for change in cause.changes]
    # What the loading of data needs belongs together.
    together = " ".join(changes) if cause.kind == "data" else ", or ".join(changes)
    facts = dict(cause.facts)
    facts |= {name: write(facts[name]) for name, write in FACT_WRITERS.items() if name in facts}
    text = _of_case(TEXTS, cause).format(**facts)
    remedy = _of_case(REMEDIES, cause)
    if isinstance(remedy, str):
        return text, remedy.format(**facts, changes=together)
    to_try = ", or ".join(filter(None, (together, *remedy)))
    return text, f"try {to_try}" if to_try else "no setting helps that this sweep lacks"


def _of_case(table: Mapping[str, Any], cause: Cause) -> Any:
    """The entry of a cause's case, or else of what is common to several, or of its kind."""
    name = f"{cause.kind}, {cause.case}"
    return table[max((key for key in table if name.startswith(key)), key=len)]


def _change_words(change: OptionChange, cause: Cause) -> str:
    """A change, and what it brings: "--accumulate 4, which leaves about a quarter of this loss"."""
    words = option_words(change.option, change.value)
    if change.option == "implementations":
        processes = ", with a process for each replica" * (cause.case == "one process")
        words = f"{change.value}{processes}"
    elif change.option == "backends" and cause.case.startswith("script"):
        imports = "import dpbench.parallel and " if change.value == "shm" else ""
        words = f'{imports}init_process_group("{change.value}")'
    if change.is_measured:
        return f"{words}, which reduces it in this sweep"
    return words + QUARTER_LEFT * (change.option in ("accumulate", "sync_every"))


def not_separated(explanation: Explanation) -> Iterator[str]:
    """Why parts of a step share a factor or have none, and what to measure; repetitions left
    out."""
    row, breakdown = explanation.row, explanation.breakdown
    if IDEAL in breakdown.missing:
        batch = f" at batch {row.batch_size}" if row.batch_size else ""
        yield (
            f"{row.label}: its factors give no efficiency, because `single`{batch} has no "
            "completed repetition in common with it"
        )
    for loss, gain in explanation.offset_losses:
        parts = " and ".join((*loss.parts, *gain.parts))
        share = percent(max(0.0, loss.share.value + gain.share.value))
        yield f"{parts} offset each other: together they cost {share} of the step"
    for factor in breakdown.factors:
        stages = [PARTS.index(part) for part in factor.parts[1:]]
        reasons = dict.fromkeys(_not_measured(stage, explanation) for stage in stages)
        if reasons:
            listed = f"{', '.join(factor.parts[:-1])} and {factor.parts[-1]}"
            yield f"{listed} cannot be separated: {'; '.join(reasons)}"


def _not_measured(stage: int, explanation: Explanation) -> str:
    """Why a stage of a step was not measured, and how it can be."""
    settings, name = explanation.configuration, explanation.configuration.implementation
    of_one_rank = (SHARDED, CONTENDED)
    if explanation.is_script and SHARDED in explanation.breakdown.missing and stage in of_one_rank:
        return "the script does not run on one rank alone"
    if stage == SHARDED:
        sizes = ",".join(map(str, sorted({*settings.replica_batch_sizes})))
        return f"no `single` at batch {sizes}; add {sizes} to --batch-sizes"
    if stage == CONTENDED:
        return "no `independent` rows; add independent to --implementations"
    if explanation.is_script:
        return "the script has no DistributedDataParallel whose averaging could be left out"
    if settings.process_count == 1:
        return f"{name} drives all replicas from one process, which has one clock"
    return f"{name} has no window without synchronization"

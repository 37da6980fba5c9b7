"""What a training script does that makes it slow, or wrong, as it was seen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean

from dpbench import units
from dpbench.analysis.diagnosis.explanation import Cause
from dpbench.analysis.diagnosis.factors import Breakdown, is_large_loss
from dpbench.analysis.estimate import mean
from dpbench.analysis.throughput import after_first_segment, mean_step_seconds
from dpbench.records.trial import ScriptFacts, TrialRecord

SLOW_INPUT = 0.1
"""Smallest share of a step at which the input pipeline is named: loading in the training process
costs a few percent of short steps in any script."""
SEVERAL = 1.5
"""Forward passes per optimizer step from which a script is said to take several."""


def script_causes(
    records: Sequence[TrialRecord], breakdown: Breakdown, *, is_warm: bool
) -> Iterator[Cause]:
    """What is wrong or slow in a script, from the usable repetitions of its ranks together; if they
    are not warm, nothing that its first steps could explain."""
    facts = [rank.script for record in records for rank in record.ranks if rank.script]
    yield from _wrong(facts)
    if is_warm:
        yield from _input_pipeline(records, facts[0])
    yield from _averaging(facts, breakdown)
    yield from _devices_and_threads(records[0])


def forward_passes(records: Sequence[TrialRecord]) -> float:
    """Forward passes of training in an optimizer step of a script: more than one if it accumulates
    gradients, none if it has no DistributedDataParallel."""
    facts = [rank.script for record in records for rank in record.ranks if rank.script]
    return fmean([one.forwards / one.steps for one in facts] or [0.0])


def _wrong(facts: Sequence[ScriptFacts]) -> Iterator[Cause]:
    """Ranks that do not train one model, or all on the same samples."""
    name = next((one.differing_parameter for one in facts if one.differing_parameter), None)
    is_wrapped = any(one.is_wrapped for one in facts)
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
    if is_wrapped and any(one.same_samples for one in facts):
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
            for found, windows in ((as_is, timed), (kept, cached)):
                found.append(max(mean_step_seconds(after_first_segment(one)) for one in windows))
    if not kept:
        return
    share = mean([1 - a / b for a, b in zip(kept, as_is, strict=True)], unit="of the step")
    if share.value < SLOW_INPUT or not is_large_loss(share):
        return
    workers = facts.loader_workers or 0
    wanted = ["num_workers=…"]
    wanted += ["persistent_workers=True"] * (not facts.keeps_workers)
    wanted += ["pin_memory=True"] * (facts.gpu is not None and not facts.pins_memory)
    seconds = [units.seconds(float(f"{fmean(each):.2g}")) for each in (kept, as_is)]
    yield Cause(
        kind="input pipeline",
        share=share,
        text=f"the input pipeline ({seconds[0]} a step with the batch kept in memory, {seconds[1]} "
        "as it is)",
        remedy=f"try DataLoader({', '.join(wanted)}); this run had num_workers={workers}",
        option=f"--data-workers {workers},{max(2, 2 * workers)}",
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
            remedy="with model.no_sync(): around forward and backward of all micro-steps but the "
            "last, which then averages them once",
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
            remedy='torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) before the model is made',
        )
    cores = record.host_load.cores if record.host_load else 0
    threads = max(rank.threads or 0 for rank in record.ranks)
    each = max(1, cores // ranks)
    if cores and threads > 1 and ranks * threads > cores:
        yield Cause(
            kind="threads",
            text=f"{ranks} ranks compute with {threads} threads each, on "
            f"{units.counted(cores, 'core')}",
            remedy=f"torch.set_num_threads({each}), or no such call and --threads {each}",
        )
    elif threads == 1 and trial.devices[0] == "cpu" and cores >= 2 * ranks:
        yield Cause(
            kind="threads",
            text=f"{ranks} ranks compute with one thread each, on {units.counted(cores, 'core')}",
            remedy=f"OMP_NUM_THREADS={each}, or --threads {each}",
        )

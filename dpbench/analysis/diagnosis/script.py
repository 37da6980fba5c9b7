"""What a training script does that makes it slow, as it was seen, each with its remedy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from dpbench import units
from dpbench.analysis.diagnosis.factors import Breakdown, Part, is_large_loss
from dpbench.records.trial import ScriptFacts, TrialRecord
from dpbench.specs.traits import IMPLEMENTATIONS

SLOW_INPUT = 0.1
"""Smallest share of a step at which the input pipeline is named: loading in the training process
costs a few percent of short steps in any script."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Symptom:
    """Something in a script that costs time, or that is wrong."""

    kind: str
    text: str
    """A sentence without its period; empty where the report has numbers for it."""
    remedy: str
    option: str = ""
    """The option of `dpbench sweep` that measures what the remedy brings, if there is one."""


def symptoms(records: Sequence[TrialRecord], breakdown: Breakdown) -> tuple[Symptom, ...]:
    """The symptoms of a script, from the usable repetitions of one row; what is wrong comes before
    what is slow. () for the rows of one rank alone."""
    trial = records[0].trial
    if not trial.workload.script or not IMPLEMENTATIONS[trial.implementation].communicates:
        return ()
    facts = [rank.script for record in records for rank in record.ranks if rank.script]
    return (
        *_replicas(facts),
        *_samples(facts),
        *_devices(records),
        *_input_pipeline(facts, breakdown),
        *_reductions(facts),
        *_unused(facts),
        *_sync_batch_norm(records),
        *_threads(records),
    )


def _replicas(facts: Sequence[ScriptFacts]) -> Iterator[Symptom]:
    """Ranks that do not train the same model."""
    name = next((one.differing_parameter for one in facts if one.differing_parameter), None)
    if name is None:
        return
    if not any(one.is_wrapped for one in facts):
        yield Symptom(
            kind="never synchronized",
            text=f"Ranks train models of their own: {name} differs after the warm-up, and no "
            "forward pass went through DistributedDataParallel",
            remedy="wrap the model: model = DistributedDataParallel(model), and call that",
        )
        return
    yield Symptom(
        kind="replicas differ",
        text=f"Replicas differ: {name} is not the same on all ranks after the warm-up",
        remedy="change parameters before wrapping the model, on all ranks alike, and let all ranks "
        "load the same checkpoint",
    )


def _samples(facts: Sequence[ScriptFacts]) -> Iterator[Symptom]:
    if any(one.same_samples and one.is_wrapped for one in facts):
        yield Symptom(
            kind="same samples",
            text="All ranks train on the same samples: their batches are equal",
            remedy="DataLoader(…, sampler=DistributedSampler(dataset)), and "
            "sampler.set_epoch(epoch) before each epoch",
        )


def _devices(records: Sequence[TrialRecord]) -> Iterator[Symptom]:
    """Ranks that share one GPU, where each was given its own."""
    record = records[0]
    gpus = {rank.script.gpu for rank in record.ranks if rank.script and rank.script.gpu}
    wanted = len({*record.trial.devices})
    if gpus and len(gpus) < wanted:
        yield Symptom(
            kind="shared gpu",
            text=f"The parameters of {len(record.ranks)} ranks are on "
            f"{units.counted(len(gpus), 'GPU')} instead of {wanted}",
            remedy='torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) before the model is made',
        )


def _unused(facts: Sequence[ScriptFacts]) -> Iterator[Symptom]:
    if all(one.finds_unused and not one.has_unused for one in facts):
        yield Symptom(
            kind="find unused",
            text="find_unused_parameters=True looks for unused parameters in every step, and all "
            "parameters had a gradient",
            remedy="leave it out of DistributedDataParallel(…)",
            option="--find-unused auto,off",
        )


def _sync_batch_norm(records: Sequence[TrialRecord]) -> Iterator[Symptom]:
    layers = max(rank.sync_batch_norms for record in records for rank in record.ranks)
    if layers and records[0].trial.group_size > 1:
        yield Symptom(
            kind="sync batch norm",
            text=f"SyncBatchNorm ({units.counted(layers, 'layer')}) communicates in every forward "
            "pass; wrapper contains that, as it stays without averaging of gradients",
            remedy="BatchNorm with a larger batch per rank, or GroupNorm",
        )


def _threads(records: Sequence[TrialRecord]) -> Iterator[Symptom]:
    """Too many threads on a CPU, or one thread where cores are idle."""
    record = records[0]
    cores = record.host_load.cores if record.host_load else None
    ranks, threads = len(record.ranks), max(rank.threads or 0 for rank in record.ranks)
    if cores is None or not threads:
        return
    if threads > 1 and ranks * threads > cores:
        yield Symptom(
            kind="threads",
            text=f"{ranks} ranks compute with {threads} threads each, on "
            f"{units.counted(cores, 'core')}",
            remedy=f"torch.set_num_threads({max(1, cores // ranks)}), or no such call and "
            f"--threads {max(1, cores // ranks)}",
        )
    elif threads == 1 and record.trial.devices[0] == "cpu" and cores >= 2 * ranks:
        yield Symptom(
            kind="threads",
            text=f"{ranks} ranks compute with one thread each, on {units.counted(cores, 'core')}",
            remedy=f"OMP_NUM_THREADS={cores // ranks}, or --threads {cores // ranks}",
        )


def _input_pipeline(facts: Sequence[ScriptFacts], breakdown: Breakdown) -> Iterator[Symptom]:
    found, first = breakdown.input, facts[0]
    if found is None or found.share.value < SLOW_INPUT or not is_large_loss(found.share):
        return
    wanted = ["num_workers=…"]
    wanted += ["persistent_workers=True"] * (not first.keeps_workers)
    wanted += ["pin_memory=True"] * (first.gpu is not None and not first.pins_memory)
    workers = first.loader_workers or 0
    yield Symptom(
        kind="input pipeline",
        text="",
        remedy=f"DataLoader({', '.join(wanted)}); this run had num_workers={workers}",
        option=f"--data-workers {workers},{max(2, 2 * workers)}",
    )


def _reductions(facts: Sequence[ScriptFacts]) -> Iterator[Symptom]:
    per_step = fmean(one.reducing_forwards / one.steps for one in facts)
    if per_step >= 1.5:
        yield Symptom(
            kind="reductions",
            text=f"Gradients are averaged {per_step:.3g} times per optimizer step",
            remedy="with model.no_sync(): around forward and backward of all micro-steps but the "
            "last, which then averages them once",
        )


def script_words(kind: Part) -> tuple[str, str]:
    """A loss, and its remedy in a script."""
    if kind == "wrapper":
        return (
            "what a rank does beside its own training (hooks, buckets, other collectives)",
            "try a larger batch, or gradient accumulation with no_sync()",
        )
    return (
        "exposed communication",
        "try a larger batch, gradient accumulation with no_sync(), or a faster backend",
    )

"""Causes of what is slow or wrong in training, with what to try; and those that a script's own
records show."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from dpbench import units
from dpbench.analysis.diagnosis.factors import Breakdown, is_large_loss
from dpbench.analysis.estimate import Estimate, mean
from dpbench.analysis.throughput import after_first_segment
from dpbench.messages import option_words
from dpbench.records.trial import ScriptFacts, TrialRecord

SLOW_INPUT = 0.1
"""Smallest share of a step at which the input pipeline is named: loading in the training process
costs a few percent of short steps in any script."""
SURE = 0.01
"""Smallest share of a step at the lower end of an interval from which a cause is sure."""
SEVERAL = 1.5
"""Forward passes per optimizer step from which a script is said to take several."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cause:
    """Something that makes a configuration slow, or wrong, and what to do about it."""

    kind: str
    text: str
    """What it is: "exposed communication on gloo"."""
    remedy: str
    """What to try, or why there is nothing to try: "try shm (same host)"."""
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


def script_causes(
    records: Sequence[TrialRecord],
    breakdown: Breakdown,
    *,
    is_warm: bool = True,
    measured_workers: Sequence[int] = (),
) -> Iterator[Cause]:
    """What is wrong or slow in a script, from the usable repetitions of its ranks together; if they
    are not warm, nothing that its first steps could explain. The sweep has the same script with
    each number of `measured_workers`."""
    by_rank = [rank.script for record in records for rank in record.ranks if rank.script]
    yield from _wrong(by_rank)
    if is_warm:
        yield from _input_pipeline(records, by_rank[0], measured_workers)
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


def _input_pipeline(
    records: Sequence[TrialRecord], facts: ScriptFacts, measured_workers: Sequence[int]
) -> Iterator[Cause]:
    """Steps as they are against those on a batch that stays in memory, from the second segment on.
    A slow input pipeline costs one rank as much, so it is a loss of time and not one of scaling.

    More workers are advised unless the sweep has them, or ranks and workers fill the cores.
    """
    as_is, kept = list[float](), list[float]()
    for record in records:
        cached = [rank.cached for rank in record.ranks if rank.cached]
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
    wanted = ["num_workers=…"]
    wanted += ["persistent_workers=True"] * (not facts.keeps_workers)
    wanted += ["pin_memory=True"] * (facts.gpu is not None and not facts.pins_memory)
    remedy = f"try DataLoader({', '.join(wanted)}); this run had num_workers={workers}"
    option = f"--data-workers {workers},{max(2, 2 * workers)}"
    cheaper = "make its transforms cheaper, cache their output or run them before training"
    first = records[0]
    threads = first.ranks[0].threads or 1
    cores = first.host_load.cores if first.host_load else 0
    # A rank on a GPU leaves its core to its workers most of the time.
    is_on_cpu = first.trial.devices[0] == "cpu"
    busy = max(threads, 1 + workers) if is_on_cpu else workers
    if more := sorted({count for count in measured_workers if count > workers}):
        remedy, option = f"{cheaper}; num_workers={','.join(map(str, more))} was measured, too", ""
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
        text=f"the input pipeline ({seconds[0]} a step with the batch kept in memory, {seconds[1]} "
        "as it is)",
        remedy=remedy,
        option=option,
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

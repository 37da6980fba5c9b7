"""One rank's part of a training, from the process group to the hash of the model."""

from __future__ import annotations

import json
from datetime import timedelta

import torch

from dpbench import architecture as architectures
from dpbench.codec import encode
from dpbench.data import datasets
from dpbench.data.datasets import Splits
from dpbench.errors import UsageError
from dpbench.measure.device import reset_peak_device_memory, settle_on_device
from dpbench.measure.precision import choose_products
from dpbench.measure.rank_group import RankGroup, rank_group
from dpbench.training.accounts import finished, notes, started
from dpbench.training.agreement import refused_by_all
from dpbench.training.events import Finished, Note
from dpbench.training.job import TrainingJob
from dpbench.training.resume import agreed_checkpoint, changed_files_note, opening_note
from dpbench.training.session import Session
from dpbench.training.writer import Writer


def train_rank(job: TrainingJob, rank: int) -> Finished:
    """Train as `rank`; every rank returns the same.

    The environment variables of torch.distributed are set, unless one process drives all replicas.

    Raises:
        UsageError: the ranks got different jobs, or the checkpoint belongs to another training.
        DataError: the samples are missing or too few.
        NotFinite, OutOfSync: on all ranks alike.
    """
    run = job.run
    device = settle_on_device(job.spec, rank)
    timeout = timedelta(seconds=run.timeout_seconds)
    choose_products(job.spec.dtype)
    with rank_group(
        job.spec.backend, job.spec.process_count, timeout=timeout, debug=run.debug
    ) as ranks:
        return train(job, rank, ranks, device)


def train(job: TrainingJob, rank: int, ranks: RankGroup, device: torch.device) -> Finished:
    """Train in an existing group."""
    spec, workload = job.spec, job.spec.workload
    require_same(job, ranks)
    with refused_by_all(ranks):
        architecture = architectures.load(workload.architecture)
        splits = datasets.load_splits(
            workload.dataset,
            job.prepared,
            architecture,
            seed=workload.seed,
            train_samples=spec.train_samples,
        )
    samples_sha256 = agreed_samples(splits, ranks)
    reset_peak_device_memory(device)
    with Writer(job, rank, ranks) as writer:
        session = Session(job, rank, ranks, architecture, splits, samples_sha256, device, writer)

        def say(text: str) -> None:
            writer.say(Note(text=text))

        checkpoint = agreed_checkpoint(job, rank, ranks, say)
        if checkpoint is not None:
            session.restore(checkpoint)
        opening = (opening_note(job, checkpoint), changed_files_note(job, checkpoint))
        for text in (*opening, *notes(job, architecture, session)):
            if text is not None:
                say(text)
        writer.say(started(job, rank, ranks, architecture, session, checkpoint))
        session.train()
        writer.finish_checkpoints()
        outcome = finished(job, ranks, architecture, session, writer)
        writer.say(outcome)
    return outcome


def require_same(job: TrainingJob, ranks: RankGroup) -> None:
    """Raise UsageError, on all ranks, unless all got the same job; a collective.

    This covers more than the training itself: log, checkpoints and comparisons are collectives,
    too.
    """
    told = {**encode(job.spec), **encode(job.run), "resume": job.resume is not None}
    mine = json.dumps(told, sort_keys=True).encode()
    everyone = ranks.gather_bytes(mine)
    for rank, theirs in enumerate(everyone):
        if theirs != everyone[0]:
            raise UsageError(
                f"rank {rank} was given another training than rank 0: "
                f"{_differences(json.loads(everyone[0]), json.loads(theirs))}; give every node "
                "the same command"
            )


def agreed_samples(splits: Splits, ranks: RankGroup) -> str:
    """The hash of the samples; raises UsageError, on all ranks, if one has other samples."""
    mine = splits.sha256()
    counts = f"{len(splits.train)} + {len(splits.test)} samples of hash {mine[:12]}"
    everyone = [data.decode() for data in ranks.gather_bytes(f"{mine} {counts}".encode())]
    hashes, words = zip(*(theirs.split(" ", 1) for theirs in everyone), strict=True)
    for rank, theirs in enumerate(hashes):
        if theirs != hashes[0]:
            raise UsageError(
                f"rank {rank} has other samples than rank 0: {words[0]} on rank 0, {words[rank]} "
                "there; give every host the same data"
            )
    return mine


def _differences(first: dict[str, object], other: dict[str, object]) -> str:
    names = sorted(first.keys() | other.keys())
    return ", ".join(
        f"{name}: {first.get(name, 'default')!r} on rank 0, {other.get(name, 'default')!r} there"
        for name in names
        if first.get(name) != other.get(name)
    )

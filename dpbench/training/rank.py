"""One rank's part of a training, from the process group to the hash of the model."""

from __future__ import annotations

import hashlib
import json
import os
import socket
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from time import perf_counter

import torch

from dpbench import architecture as architectures
from dpbench.architecture import Architecture, CountsCorrect, items_per_sample
from dpbench.data import datasets
from dpbench.measure.device import (
    peak_device_memory_bytes,
    peak_host_memory_bytes,
    peak_reserved_memory_bytes,
    reset_peak_device_memory,
    settle_on_device,
)
from dpbench.measure.precision import choose_products
from dpbench.measure.rank_group import RankGroup, rank_group
from dpbench.training.agreement import agreed_samples, refused_by_all, require_same
from dpbench.training.checkpoint import Checkpoint
from dpbench.training.events import Finished, Note, Started, from_line, to_line
from dpbench.training.job import TrainingJob
from dpbench.training.resume import agreed_checkpoint, opening_notes
from dpbench.training.session import OutOfSync, Session, Writer

LONGEST_IDENTITY_BYTES = 4096
"""Largest identity of a rank: a host name and two numbers."""
LONGEST_ENDING_BYTES = 2**24
"""Largest report on the end of a training, with three numbers for each of up to 100,000 ranks."""


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
        return train(job, ranks, device)


def train(job: TrainingJob, ranks: RankGroup, device: torch.device) -> Finished:
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
    with closing(Writer(job, ranks)) as writer:
        session = Session(job, ranks, architecture, splits, samples_sha256, device, writer)
        checkpoint = agreed_checkpoint(job, ranks)
        if checkpoint is not None:
            session.restore(checkpoint)
        for text in (*opening_notes(job, checkpoint), *_notes(job, architecture, session)):
            writer.log(Note(text=text))
        writer.log(_started(job, ranks, architecture, session, checkpoint))
        session.train()
        outcome = _finished(job, ranks, architecture, session, writer)
        writer.log(outcome)
    return outcome


def _notes(job: TrainingJob, architecture: Architecture, session: Session) -> Iterator[str]:
    """Notes on options that are ignored or have no effect."""
    spec, run = job.spec, job.run
    samples = len(session.splits.train)
    if left_out := samples - session.plan.trained_samples:
        yield f"{left_out} of {samples} samples are left out of every epoch, with its last window"
    if run.evaluation != "off" and not isinstance(architecture, CountsCorrect):
        yield (
            f"architecture {architecture.name!r} has no count_correct(), so there is no test "
            "accuracy; the best epoch is that of the lowest test loss"
        )
    if run.check_sync_every is not None and spec.process_count == 1:
        yield "parameters are not compared over ranks, as there is one process"
    if spec.warmup_steps and spec.learning_rate == spec.workload.learning_rate:
        yield (
            f"the warm-up of {spec.warmup_steps} steps has no effect, as the learning rate is not "
            "scaled with the batch"
        )


def _started(
    job: TrainingJob,
    ranks: RankGroup,
    architecture: Architecture,
    session: Session,
    checkpoint: Checkpoint | None,
) -> Started:
    """The Started event of a training; a collective."""
    spec = job.spec
    own = [socket.gethostname(), os.getpid(), session.plan.samples_of(ranks.rank)]
    everyone = ranks.gather_bytes(json.dumps(own).encode(), LONGEST_IDENTITY_BYTES)
    hosts, pids, samples = zip(*map(json.loads, everyone), strict=True)
    trained = (p.numel() for p in session.learner.module.parameters() if p.requires_grad)
    return Started(
        world_size=ranks.size,
        group_size=spec.group_size,
        hosts=hosts,
        pids=pids,
        devices=spec.devices,
        samples_per_rank=samples,
        train_samples=session.plan.trained_samples,
        effective_batch_size=spec.effective_batch_size,
        steps_per_epoch=session.plan.steps,
        parameters=sum(trained),
        epoch=session.at.epoch + 1,
        step=session.at.step,
        item=architecture.item,
        items_per_sample=items_per_sample(architecture),
        test_samples=None if job.run.evaluation == "off" else len(session.splits.test),
        resumed_from=None if checkpoint is None else checkpoint.source,
    )


def _finished(
    job: TrainingJob,
    ranks: RankGroup,
    architecture: Architecture,
    session: Session,
    writer: Writer,
) -> Finished:
    """The Finished event of rank 0, on all ranks; a collective.

    Raises OutOfSync, on all ranks, if they do not hold the same model.
    """
    at, score, device = session.at, session.score, session.learner.device
    hashes = ranks.gather_bytes(state_sha256(session.learner.module).encode())
    apart = [rank for rank, theirs in enumerate(hashes) if theirs != hashes[0]]
    if apart:
        raise OutOfSync(
            f"the models of the ranks are not the same at the end: that of rank {apart[0]} is not "
            "rank 0's; --check-sync-every finds the step"
        )

    def by_rank(peak: int) -> tuple[int, ...]:
        return tuple(int(theirs) for (theirs,) in ranks.gather([peak]))

    allocated, reserved = peak_device_memory_bytes(device), peak_reserved_memory_bytes(device)
    mine = Finished(
        final_loss=at.loss,
        epochs=at.epoch,
        steps=at.step,
        world_size=ranks.size,
        group_size=job.spec.group_size,
        state_sha256=hashes[0].decode(),
        elapsed_seconds=perf_counter() - session.began,
        samples=session.pace.samples,
        item=architecture.item,
        items_per_sample=items_per_sample(architecture),
        peak_host_memory_bytes=by_rank(peak_host_memory_bytes()),
        peak_device_memory_bytes=None if allocated is None else by_rank(allocated),
        peak_reserved_memory_bytes=None if reserved is None else by_rank(reserved),
        data_wait_share=session.pace.wait_share,
        skipped_steps=at.sums.skipped_steps,
        test_accuracy=None if score is None else score.accuracy,
        test_loss=None if score is None else score.loss,
        best_checkpoint=writer.best_checkpoint,
        last_checkpoint=writer.last_checkpoint,
    )
    line = ranks.gather_bytes(to_line(mine).encode(), LONGEST_ENDING_BYTES)[0]
    of_first = from_line("rank 0", line)
    assert isinstance(of_first, Finished)
    return of_first


def state_sha256(module: torch.nn.Module) -> str:
    """SHA-256 over the names, dtypes, shapes and bytes of parameters and buffers, in hexadecimal.

    `module` is the bare module, without a wrapper. Devices, memory layouts and the order of
    construction make no difference. Buffers that are in no checkpoint do not count. This waits for
    the device.
    """
    content = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        whole = tensor.detach().cpu().contiguous()
        content.update(f"{name}\0{whole.dtype}\0{tuple(whole.shape)}\0".encode())
        content.update(whole.reshape(-1).view(torch.uint8).numpy().data)
    return content.hexdigest()

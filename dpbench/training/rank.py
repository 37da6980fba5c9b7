"""One rank's part of a training, from the process group to the hash of the model."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from time import perf_counter

import torch

from dpbench import architecture as architectures
from dpbench.architecture import CountsCorrect, items_per_sample
from dpbench.codec import encode
from dpbench.data import datasets
from dpbench.data.batch import tensors_sha256
from dpbench.errors import UsageError
from dpbench.measure.device import (
    peak_device_memory,
    peak_host_memory_bytes,
    reset_peak_device_memory,
    set_device_and_threads,
)
from dpbench.measure.precision import set_tf32
from dpbench.measure.rank_group import RankGroup, rank_group
from dpbench.measure.unused import unused_parameters_named
from dpbench.training.checkpoint_folder import BEST, latest_checkpoint
from dpbench.training.events import Finished, Note, Started, from_line, to_line
from dpbench.training.job import TrainingJob
from dpbench.training.resume import agreed_checkpoint, opening_notes
from dpbench.training.session import OutOfSync, Session


def train_rank(job: TrainingJob, rank: int) -> Finished:
    """Train as `rank`; every rank returns the same.

    The environment variables of torch.distributed are set, unless one process drives all replicas.

    Raises:
        UsageError: the ranks got different jobs, or the checkpoint belongs to another training.
        DataError: the samples are missing or too few.
        NotFinite, OutOfSync: on all ranks alike.
    """
    run = job.run
    device = set_device_and_threads(job.spec, rank)
    timeout = timedelta(seconds=run.timeout_seconds)
    set_tf32(job.spec.workload.dtype)
    with rank_group(
        job.spec.backend, job.spec.process_count, timeout=timeout, debug=run.debug
    ) as ranks:
        return train(job, ranks, device)


def train(job: TrainingJob, ranks: RankGroup, device: torch.device) -> Finished:
    """Train in an existing group."""
    spec, workload = job.spec, job.spec.workload
    architecture = architectures.load(workload.architecture)
    splits = datasets.load_splits(
        workload.dataset,
        job.prepared,
        architecture,
        seed=workload.seed,
        train_samples=spec.train_samples,
    )
    samples_sha256 = splits.sha256()
    require_same(job, samples_sha256, ranks)
    reset_peak_device_memory(device)
    session = Session(job, ranks, architecture, splits, samples_sha256, device)
    with closing(session):
        checkpoint = agreed_checkpoint(job, ranks)
        if checkpoint is not None:
            session.restore(checkpoint)
        for text in (*opening_notes(job, checkpoint), *_notes(session)):
            session.log(Note(text=text))
        session.log(_started(session, None if checkpoint is None else checkpoint.source))
        with unused_parameters_named(session.learner.module):
            session.train()
        outcome = _finished(session)
        session.log(outcome)
    return outcome


def require_same(job: TrainingJob, samples_sha256: str, ranks: RankGroup) -> None:
    """Raise UsageError, on all ranks, unless all got the same job and samples; a collective.

    This covers more than the training itself: log, checkpoints and comparisons are collectives,
    too.
    """
    own = [encode(job.spec), encode(job.run), job.resume is not None, samples_sha256]
    everyone = ranks.gather_bytes(json.dumps(own, sort_keys=True).encode())
    for rank, theirs in enumerate(everyone):
        if theirs != everyone[0]:
            raise UsageError(
                f"rank {rank} was given another training or other samples than rank 0; give every "
                "node the same command and the same data"
            )


def _notes(session: Session) -> Iterator[str]:
    """Notes on options that are ignored or have no effect."""
    samples, plan, architecture = len(session.splits.train), session.plan, session.architecture
    if left_out := samples - plan.samples_before(plan.steps):
        yield f"{left_out} of {samples} samples are left out of every epoch, with its last window"
    if session.job.run.evaluation != "off" and not isinstance(architecture, CountsCorrect):
        yield "the best epoch is that of the lowest test loss: the model has no count_correct()"


def _started(session: Session, resumed_from: str | None) -> Started:
    """The Started event of a training; a collective."""
    spec, plan, ranks = session.job.spec, session.plan, session.ranks
    own = [socket.gethostname(), os.getpid(), plan.samples_before(plan.steps, ranks.rank)]
    everyone = ranks.gather_bytes(json.dumps(own).encode())
    hosts, pids, samples = zip(*map(json.loads, everyone), strict=True)
    trained = (p.numel() for p in session.learner.module.parameters() if p.requires_grad)
    evaluates = session.job.run.evaluation != "off"
    return Started(
        world_size=ranks.size,
        group_size=spec.group_size,
        hosts=hosts,
        pids=pids,
        devices=spec.devices,
        samples_per_rank=samples,
        train_samples=plan.samples_before(plan.steps),
        effective_batch_size=spec.effective_batch_size,
        steps_per_epoch=plan.steps,
        parameters=sum(trained),
        epoch=session.at.epoch + 1,
        step=session.at.step,
        item=session.architecture.item,
        items_per_sample=items_per_sample(session.architecture),
        test_samples=len(session.splits.test) if evaluates else None,
        resumed_from=resumed_from,
    )


def _finished(session: Session) -> Finished:
    """The Finished event of rank 0, on all ranks; a collective.

    Raises OutOfSync, on all ranks, if they do not hold the same model.
    """
    at, score, ranks = session.at, session.score, session.ranks
    device, last, has_best = session.learner.device, None, False
    if session.folder is not None:
        checkpoints = session.folder.checkpoints
        last, has_best = latest_checkpoint(checkpoints), (checkpoints / BEST).exists()
    hashes = ranks.gather_bytes(state_sha256(session.learner.module).encode())
    for rank, theirs in enumerate(hashes):
        if theirs != hashes[0]:
            raise OutOfSync(
                f"the models of the ranks are not the same at the end: that of rank {rank} is not "
                "rank 0's; --check-sync-every finds the step"
            )

    def by_rank(peak: int | None) -> tuple[int, ...] | None:
        if peak is None:
            return None
        return tuple(int(theirs) for (theirs,) in ranks.gather([peak]))

    allocated, reserved = peak_device_memory(device)
    mine = Finished(
        final_loss=session.loss,
        epochs=at.epoch,
        steps=at.step,
        world_size=ranks.size,
        group_size=session.job.spec.group_size,
        state_sha256=hashes[0].decode(),
        elapsed_seconds=perf_counter() - session.began,
        samples=session.pace.samples,
        item=session.architecture.item,
        items_per_sample=items_per_sample(session.architecture),
        peak_host_memory_bytes=by_rank(peak_host_memory_bytes()) or (),
        peak_device_memory_bytes=by_rank(allocated),
        peak_reserved_memory_bytes=by_rank(reserved),
        data_wait_share=session.pace.wait_share,
        skipped_steps=at.skipped_steps,
        test_accuracy=None if score is None else score.accuracy,
        test_loss=None if score is None else score.loss,
        best_checkpoint=BEST if has_best else None,
        last_checkpoint=None if last is None else last.name,
    )
    # Clocks and memory differ: all ranks return what rank 0 writes to the log.
    of_first = from_line("rank 0", ranks.gather_bytes(to_line(mine).encode())[0])
    assert isinstance(of_first, Finished)
    return of_first


def state_sha256(module: torch.nn.Module) -> str:
    """SHA-256 over the names, dtypes, shapes and bytes of parameters and buffers, in hexadecimal.

    `module` is the bare module, without a wrapper. Devices, memory layouts and the order of
    construction make no difference. Buffers that are in no checkpoint do not count. This waits for
    the device.
    """
    state = sorted(module.state_dict().items())
    return tensors_sha256((name, tensor.detach().cpu()) for name, tensor in state)

"""One rank's part of a training, from the process group to the last line of the log; and what no
rank could do."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import torch

from dpbench.architecture import load_architecture
from dpbench.codec import differing_fields, encode
from dpbench.data import datasets
from dpbench.errors import FileError, UsageError
from dpbench.files import read_bytes
from dpbench.measure.device import reset_peak_device_memory, set_devices_and_threads, set_tf32
from dpbench.measure.unused import unused_parameters_named
from dpbench.rendezvous.process_group import RankGroup, enable_debug_logging, rank_group
from dpbench.specs.training import RESUME_LATEST, TrainingRunOptions, TrainingSpec
from dpbench.specs.traits import BUILT_IN
from dpbench.training.checkpoint import Checkpoint, from_bytes, latest_checkpoint
from dpbench.training.events import EndLine
from dpbench.training.loop import TrainingLoop
from dpbench.training.run_folder import CHECKPOINTS, TrainingJob


def train_rank(job: TrainingJob, rank: int) -> EndLine:
    """Train as `rank`; every rank returns the same.

    The environment variables of torch.distributed are set, unless one process drives all replicas.

    Raises:
        UsageError: the ranks got different jobs, the checkpoint belongs to another training, or the
            samples are missing or too few.
        TrainingFailed: on all ranks alike.
    """
    run = job.run
    devices = set_devices_and_threads(job.spec, rank)
    timeout = timedelta(seconds=run.timeout_seconds)
    set_tf32(job.spec.workload.dtype)
    if run.debug:
        enable_debug_logging()
    with rank_group(job.spec.backend, job.spec.process_count, devices[0], timeout=timeout) as ranks:
        return train_in_group(job, ranks, devices)


def train_in_group(job: TrainingJob, ranks: RankGroup, devices: Sequence[torch.device]) -> EndLine:
    """Train in an existing group."""
    workload, train_samples = job.spec.workload, job.spec.train_samples
    architecture = load_architecture(workload.architecture)
    splits = datasets.load_splits(workload, job.prepared, architecture, train_samples)
    # Log, checkpoints and comparisons are collectives too: all of their options must be the same.
    tasks = ranks.gather([encode(job.spec), encode(job.run), job.resume is not None, splits.sha256])
    for rank, task in enumerate(tasks):
        if task != tasks[0]:
            raise UsageError(
                f"rank {rank} was given another training or other samples than rank 0; give every "
                "node the same command and the same data"
            )
    checkpoint = agreed_checkpoint(job, ranks)
    if checkpoint is not None and checkpoint.samples_sha256 != splits.sha256:
        raise UsageError(
            f"{checkpoint.file}: it does not fit this training: it was trained on other "
            f"samples, with hash {checkpoint.samples_sha256[:12]}; those here have "
            f"{splits.sha256[:12]}; use the data that it was trained on"
        )
    reset_peak_device_memory(*devices)
    with (
        closing(TrainingLoop(job, ranks, architecture, splits, devices, checkpoint)) as loop,
        unused_parameters_named(loop.model.module),
    ):
        return loop.train()


def agreed_checkpoint(job: TrainingJob, ranks: RankGroup) -> Checkpoint | None:
    """The checkpoint that the job continues from; None if it starts from the beginning.

    This is a collective. Only rank 0 looks for the file, and sends its bytes to the others: if each
    rank looked for itself and some found nothing, they would diverge.

    Raises UsageError: the file is no checkpoint of dpbench, or belongs to another training. If it
    cannot be read, the other ranks raise RuntimeError with the words of rank 0.
    """
    if job.resume is None:
        return None

    def find() -> tuple[bytes, str] | None:
        """Content and path of the file; None if there is no checkpoint."""
        path: Path | None = Path(str(job.resume))
        if job.resume == RESUME_LATEST:
            path = latest_checkpoint(job.folder / CHECKPOINTS)
        try:
            return None if path is None else (read_bytes(path), str(path))
        except FileError as error:
            raise UsageError(str(error)) from None

    file = ranks.on_first(find)
    if file is None:
        return None
    checkpoint = from_bytes(*file)
    # The number of epochs may differ, and so may the content of the user's files.
    earlier = replace(checkpoint.spec.with_files_of(job.spec), epochs=job.spec.epochs)
    if differences := differing_fields(job.spec, earlier):
        raise UsageError(
            f"{checkpoint.file} belongs to another training: {', '.join(differences)}; use the "
            "options that it was made with, or train without --resume"
        )
    return checkpoint


TRAINABLE = tuple(
    name
    for name, traits in BUILT_IN.items()
    if traits.shards != "parameters" and (traits.communicates or traits.largest_group == 1)
)
"""Implementations that `dpbench train` offers: parameters stay whole, and replicas equal."""


def refuse_unusable(spec: TrainingSpec, run: TrainingRunOptions) -> None:
    """Raise UsageError for values that do not go together."""
    name, traits = spec.implementation, spec.traits
    if name not in TRAINABLE:
        raise UsageError(f"{name} cannot be trained with; expected one of {', '.join(TRAINABLE)}")
    largest = traits.largest_group
    if largest is not None and spec.group_size > largest:
        raise UsageError(f"{name}: got a group size of {spec.group_size}, expected {largest}")
    if spec.unusable_reason is not None:
        raise UsageError(f"{name}: {spec.unusable_reason}")
    if spec.process_count == 1 and spec.balance == "speed":
        raise UsageError(
            f"balance speed: got {name} at group size {spec.group_size}, which is one process; "
            "expected several, as shares are of processes"
        )
    # Between two averages of local-sgd the parameters of the ranks differ.
    for what, every in (
        ("a checkpoint every", run.checkpoint_every),
        ("a comparison of the ranks every", run.check_sync_every),
        ("an end after", run.max_steps),
    ):
        if traits.averages_parameters and every is not None and every % spec.sync_every:
            raise UsageError(
                f"{what} {every} steps: {name} averages parameters every {spec.sync_every} steps, "
                f"and only then are they one model; expected a multiple of {spec.sync_every}"
            )

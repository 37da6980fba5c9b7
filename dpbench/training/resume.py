"""The checkpoint to resume from: rank 0 finds and reads it, and all ranks use the same one, or
none.

If each rank looked for itself and some found nothing, they would diverge.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist

from dpbench import units
from dpbench.codec import differing_fields
from dpbench.errors import UsageError
from dpbench.files import read_bytes
from dpbench.measure.rank_group import RankGroup
from dpbench.specs.training import RESUME_LATEST
from dpbench.training.checkpoint import Checkpoint, from_bytes
from dpbench.training.checkpoint_folder import latest_checkpoint
from dpbench.training.job import TrainingJob
from dpbench.training.run_folder import CHECKPOINTS


def agreed_checkpoint(job: TrainingJob, ranks: RankGroup) -> Checkpoint | None:
    """The checkpoint that the job continues from; None if it starts from the beginning.

    This is a collective. Only rank 0 looks for the file, and sends its bytes to the others over the
    control group.

    Raises UsageError, in one line with file and reason, on every rank: the file cannot be read, or
    is no checkpoint of dpbench, or belongs to another training.
    """
    if job.resume is None:
        return None
    path, data, error = None, b"", None
    if ranks.rank == 0:
        try:
            path, data = _find(job)
        except UsageError as found:
            error = str(found)
    header = json.dumps([path, len(data), error]).encode()
    path, length, error = json.loads(ranks.gather_bytes(header)[0])
    if error is not None:
        raise UsageError(error)
    if path is None:
        return None
    if ranks.control is not None:
        received = bytearray(data) if ranks.rank == 0 else bytearray(length)
        message = torch.frombuffer(received, dtype=torch.uint8)
        dist.broadcast(message, group=ranks.control, group_src=0)
        data = bytes(received)
    return from_bytes(data, path)


def _find(job: TrainingJob) -> tuple[str | None, bytes]:
    """Path and content of the checked checkpoint; None if there is no latest checkpoint."""
    path: Path | None = Path(str(job.resume))
    if job.resume == RESUME_LATEST:
        path = latest_checkpoint(job.folder / CHECKPOINTS)
    if path is None:
        return None, b""
    try:
        data = read_bytes(path)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from None
    checkpoint = from_bytes(data, str(path))
    # The number of epochs may differ, and so may the content of the user's files.
    earlier = checkpoint.spec.with_files_of(job.spec)
    differences = [
        difference
        for difference in differing_fields(job.spec, earlier)
        if not difference.startswith("epochs: ")
    ]
    if differences:
        raise UsageError(
            f"{path} belongs to another training: {', '.join(differences)}; use the options that "
            "it was made with, or train without --resume"
        )
    return str(path), data


def opening_notes(job: TrainingJob, checkpoint: Checkpoint | None) -> Iterator[str]:
    """Notes on a resumption."""
    if job.resume is None:
        return
    if checkpoint is None:
        yield f"no checkpoint in {job.folder / CHECKPOINTS}: training starts from the beginning"
        return
    at, epochs, most = checkpoint.progress, job.spec.epochs, job.run.max_steps
    done = units.counted(at.step, "optimizer step")
    if at.epoch >= epochs or (most is not None and at.step >= most):
        yield f"{checkpoint.source} is after {done}: nothing is left to train"
    else:
        yield (
            f"resuming from {checkpoint.source}, after {done}, in epoch {at.epoch + 1} of {epochs}"
        )

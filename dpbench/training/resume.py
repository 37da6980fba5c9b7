"""The checkpoint to resume from: rank 0 finds and reads it, and all ranks use the same one, or
none.

If each rank looked for itself and some found nothing, they would diverge.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dpbench import units
from dpbench.codec import differing_fields
from dpbench.data.user_code import change_words
from dpbench.errors import StoreError, UsageError
from dpbench.files import open_to_read
from dpbench.measure.rank_group import RankGroup
from dpbench.specs.training import RESUME_LATEST
from dpbench.training.agreement import refused_by_all
from dpbench.training.checkpoint import Checkpoint, from_bytes
from dpbench.training.checkpoint_folder import latest_checkpoint, steps_in_name
from dpbench.training.job import TrainingJob
from dpbench.training.run_folder import CHECKPOINTS


@dataclass(frozen=True, slots=True)
class _Found:
    """The checkpoint that rank 0 has read, or why it could not."""

    path: str | None = None
    data: bytes = b""
    checkpoint: Checkpoint | None = None
    error: str | None = None


def agreed_checkpoint(job: TrainingJob, ranks: RankGroup) -> Checkpoint | None:
    """The checkpoint that the job continues from; None if it starts from the beginning.

    This is a collective. Only rank 0 looks for the file, and sends its bytes to the others over the
    control group.

    Raises UsageError, in one line with file and reason, the same on every rank: the file is not
    there, cannot be read, or is no checkpoint of dpbench; it belongs to another training, or to
    one with more epochs done than the job has; a later one lies in the job's folder.
    """
    if job.resume is None:
        return None
    found = ranks.on_first(lambda: _look(job))
    words = None if found is None else json.dumps([found.path, found.error]).encode()
    path, error = json.loads(broadcast_bytes(words, ranks))
    if error is not None:
        raise UsageError(error)
    if path is None:
        return None
    data = broadcast_bytes(None if found is None else found.data, ranks)
    checkpoint = found.checkpoint if found else None
    with refused_by_all(ranks):  # rank 0 could read it, but others may have another torch
        if found is None:
            checkpoint = from_bytes(data, path)
    return checkpoint


def opening_note(job: TrainingJob, checkpoint: Checkpoint | None) -> str | None:
    """Message about a resumption; None if none was asked for."""
    if job.resume is None:
        return None
    if checkpoint is None:
        return f"no checkpoint in {job.folder / CHECKPOINTS}: training starts from the beginning"
    epochs = job.spec.epochs
    if checkpoint.epoch >= epochs:
        trained = units.counted(epochs, "epoch")
        return f"{checkpoint.source} has all {trained}: nothing is left to train"
    most, done = job.run.max_steps, units.counted(checkpoint.step, "optimizer step")
    if most is not None and checkpoint.step >= most:
        return (
            f"{checkpoint.source} is after {done}: with --max-steps {most} nothing is left to train"
        )
    return (
        f"training goes on from {checkpoint.source}, after {done}, in epoch "
        f"{checkpoint.epoch + 1} of {epochs}"
    )


def changed_files_note(job: TrainingJob, checkpoint: Checkpoint | None) -> str | None:
    """Message if the user's files differ from those that the checkpoint was trained with."""
    if checkpoint is None:
        return None
    before, now = checkpoint.spec.workload, job.spec.workload
    if before.files_sha256 == now.files_sha256:
        return None
    words = change_words(before, now, f"since {checkpoint.source}")
    return f"{words}; the parameters fit, and training goes on with what is there now"


def require_fit(checkpoint: Checkpoint, module: nn.Module, samples_sha256: str) -> None:
    """Raise UsageError unless the checkpoint is of these samples, and its tensors have the names,
    shapes and dtypes of the bare `module`."""
    if misfits := [*_misfits(checkpoint.model, module.state_dict())]:
        more = f" (and {len(misfits) - 1} more)" if len(misfits) > 1 else ""
        raise UsageError(f"{checkpoint.source} does not fit the model: {misfits[0]}{more}")
    if checkpoint.samples_sha256 != samples_sha256:
        raise UsageError(
            f"{checkpoint.source}: it does not fit this training: it was trained on other samples, "
            f"by their hash {checkpoint.samples_sha256[:12]}; those here have "
            f"{samples_sha256[:12]}; give the data that it was trained on, or train anew without "
            "--resume"
        )


def _look(job: TrainingJob) -> _Found:
    """Find, read and check the checkpoint."""
    folder = job.folder / CHECKPOINTS
    is_latest = job.resume == RESUME_LATEST
    path = latest_checkpoint(folder) if is_latest else Path(str(job.resume))
    if path is None:
        return _Found()
    try:
        data = _read(path, named_by_user=not is_latest)
        checkpoint = from_bytes(data, str(path))
        _require_same_training(checkpoint, job)
        _require_latest(checkpoint, folder)
    except UsageError as error:
        return _Found(error=str(error))
    return _Found(str(path), data, checkpoint)


def _read(path: Path, *, named_by_user: bool) -> bytes:
    """Read the file; raises UsageError if it is no regular file, or cannot be read."""
    try:
        if path.is_dir():
            inside = latest_checkpoint(path) or latest_checkpoint(path / CHECKPOINTS)
            hint = f", e.g. {inside}" if inside else ""
            raise UsageError(f"{path} is no file; expected a checkpoint{hint}")
        with open_to_read(path, named_by_user=named_by_user) as file:
            return file.read()
    except FileNotFoundError:
        raise UsageError(
            f"{path} does not exist; expected a checkpoint, or --resume {RESUME_LATEST}"
        ) from None
    except StoreError as error:
        raise UsageError(str(error)) from None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from None


def _require_same_training(checkpoint: Checkpoint, job: TrainingJob) -> None:
    earlier = checkpoint.spec.with_files_of(job.spec).recomputed_as(job.spec)
    differences = [
        difference
        for difference in differing_fields(job.spec, earlier)
        if not difference.startswith("epochs: ")
    ]
    if differences:
        raise UsageError(
            f"{checkpoint.source} belongs to another training: {', '.join(differences)}; give the "
            "options that it was made with, or train anew without --resume"
        )
    begun = checkpoint.epoch + (checkpoint.window > 0)
    if job.spec.epochs < begun:
        raise UsageError(
            f"{checkpoint.source} is in epoch {begun}: got {job.spec.epochs} epochs; expected at "
            f"least {begun}"
        )


def _require_latest(checkpoint: Checkpoint, folder: Path) -> None:
    """Refuse a checkpoint older than others in the folder. Otherwise `latest_checkpoint` would
    return one of another course of this training, and the new ones would be deleted as the
    oldest."""
    newest = latest_checkpoint(folder)
    if newest is None or steps_in_name(newest) <= checkpoint.step:
        return
    raise UsageError(
        f"{checkpoint.source} is of step {checkpoint.step}, and {newest} is later; expected the "
        f"latest (--resume {RESUME_LATEST}), or another folder to train in from an earlier one"
    )


def _misfits(saved: dict[str, Tensor], own: dict[str, Any]) -> Iterator[str]:
    for name in sorted({*saved, *own}):
        if name not in own:
            yield f"it has {name!r}, which the model has not"
        elif name not in saved:
            yield f"it lacks {name!r}"
        elif (got := _kind(saved[name])) != (expected := _kind(own[name])):
            yield f"its {name!r} is {got}; expected {expected}"


def _kind(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


PIECE_BYTES = 64 * 1024**2
"""Size of one message; limits how much the backend copies at a time."""


def broadcast_bytes(data: bytes | None, ranks: RankGroup) -> bytes:
    """Send rank 0's `data` to every rank; a collective on the control group. Others pass None."""
    if ranks.control is None:
        assert data is not None
        return data
    (length,), *_ = ranks.gather([0 if data is None else len(data)])
    received = bytearray(int(length)) if data is None else bytearray(data)
    if received:
        source = dist.get_global_rank(ranks.control, 0)
        for piece in torch.split(torch.frombuffer(received, dtype=torch.uint8), PIECE_BYTES):
            dist.broadcast(piece, src=source, group=ranks.control)
    return bytes(received) if data is None else data

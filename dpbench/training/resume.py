"""The checkpoint to resume from: rank 0 finds and reads it, and all ranks use the same one, or
none.

If each rank looked for itself and some found nothing, they would diverge.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
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


def agreed_checkpoint(job: TrainingJob, ranks: RankGroup) -> Checkpoint | None:
    """The checkpoint that the job continues from; None if it starts from the beginning.

    This is a collective. Only rank 0 looks for the file, and sends its bytes to the others over the
    control group.

    Raises UsageError, in one line with file and reason, on every rank: the file does not exist,
    cannot be read, or is no checkpoint of dpbench; it belongs to another training, or to one with
    more epochs done than the job has; a later one is in the job's folder.
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
    data = _broadcast(data, length, ranks)
    with refused_by_all(ranks):  # rank 0 could read it, but another rank may have another torch
        return from_bytes(data, path)


def _find(job: TrainingJob) -> tuple[str | None, bytes]:
    """Path and content of the checked checkpoint; None if there is no latest checkpoint."""
    path: Path | None = Path(str(job.resume))
    is_latest = job.resume == RESUME_LATEST
    if is_latest:
        path = latest_checkpoint(job.folder / CHECKPOINTS)
    if path is None:
        return None, b""
    try:
        if path.is_dir():
            inside = latest_checkpoint(path) or latest_checkpoint(path / CHECKPOINTS)
            hint = f", e.g. {inside}" if inside else ""
            raise UsageError(f"{path} is no file; expected a checkpoint{hint}")
        with open_to_read(path, named_by_user=not is_latest) as file:
            data = file.read()
    except FileNotFoundError:
        raise UsageError(
            f"{path} does not exist; expected a checkpoint, or --resume {RESUME_LATEST}"
        ) from None
    except StoreError as error:
        raise UsageError(str(error)) from None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from None
    checkpoint = from_bytes(data, str(path))
    _require_same_training(checkpoint, job)
    newest = latest_checkpoint(job.folder / CHECKPOINTS)
    # Otherwise `latest_checkpoint` would return one of another course of this training, and the new
    # ones would be deleted as the oldest.
    if newest is not None and steps_in_name(newest) > checkpoint.step:
        raise UsageError(
            f"{path} is of step {checkpoint.step}, and {newest} is later; expected the latest "
            f"(--resume {RESUME_LATEST}), or another folder to train in from an earlier one"
        )
    return str(path), data


def _require_same_training(checkpoint: Checkpoint, job: TrainingJob) -> None:
    """Refuse a checkpoint of another training; the number of epochs may differ, and so may the
    content of the user's files."""
    earlier = checkpoint.spec.with_files_of(job.spec)
    differences = [
        difference
        for difference in differing_fields(job.spec, earlier)
        if not difference.startswith("epochs: ")
    ]
    if differences:
        raise UsageError(
            f"{checkpoint.source} belongs to another training: {', '.join(differences)}; use the "
            "options that it was made with, or train without --resume"
        )
    begun = checkpoint.epoch + (checkpoint.window > 0)
    if job.spec.epochs < begun:
        raise UsageError(
            f"{checkpoint.source} is in epoch {begun}: got {job.spec.epochs} epochs; expected at "
            f"least {begun}"
        )


def _broadcast(data: bytes, length: int, ranks: RankGroup) -> bytes:
    """Rank 0's `data` of that length on every rank; a collective on the control group."""
    if ranks.control is None:
        return data
    received = bytearray(data) if ranks.rank == 0 else bytearray(length)
    message = torch.frombuffer(received, dtype=torch.uint8)
    dist.broadcast(message, src=dist.get_global_rank(ranks.control, 0), group=ranks.control)
    return bytes(received)


def opening_notes(job: TrainingJob, checkpoint: Checkpoint | None) -> Iterator[str]:
    """Notes on a resumption."""
    if job.resume is None:
        return
    if checkpoint is None:
        yield f"no checkpoint in {job.folder / CHECKPOINTS}: training starts from the beginning"
        return
    epochs, most = job.spec.epochs, job.run.max_steps
    done = units.counted(checkpoint.step, "optimizer step")
    if checkpoint.epoch >= epochs:
        trained = units.counted(epochs, "epoch")
        yield f"{checkpoint.source} has all {trained}: nothing is left to train"
    elif most is not None and checkpoint.step >= most:
        yield (
            f"{checkpoint.source} is after {done}: with --max-steps {most} nothing is left to train"
        )
    else:
        yield (
            f"training goes on from {checkpoint.source}, after {done}, in epoch "
            f"{checkpoint.epoch + 1} of {epochs}"
        )
    before, now = checkpoint.spec.workload, job.spec.workload
    if before.files_sha256 != now.files_sha256:
        words = change_words(before, now, f"since {checkpoint.source}")
        yield f"{words}; the parameters fit, and training goes on with the present files"


def require_fit(checkpoint: Checkpoint, module: nn.Module, samples_sha256: str) -> None:
    """Raise UsageError unless the checkpoint is of these samples, and its tensors have the names,
    shapes and dtypes of the bare `module`."""
    if misfits := [*_misfits(checkpoint.model, module.state_dict())]:
        more = f" (and {len(misfits) - 1} more)" if len(misfits) > 1 else ""
        raise UsageError(f"{checkpoint.source} does not fit the model: {misfits[0]}{more}")
    if checkpoint.samples_sha256 != samples_sha256:
        raise UsageError(
            f"{checkpoint.source}: it does not fit this training: it was trained on other samples, "
            f"with hash {checkpoint.samples_sha256[:12]}; those here have {samples_sha256[:12]}; "
            "use the data that it was trained on, or train without --resume"
        )


def _misfits(saved: dict[str, Tensor], own: dict[str, Any]) -> Iterator[str]:
    def kind(tensor: Tensor) -> str:
        return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"

    for name in sorted({*saved, *own}):
        if name not in own:
            yield f"it has {name!r}, which the model has not"
        elif name not in saved:
            yield f"it lacks {name!r}"
        elif (got := kind(saved[name])) != (expected := kind(own[name])):
            yield f"its {name!r} is {got}; expected {expected}"
